"""Writes the page of behaviours."""

from tests.conformance import test_aws_cases, test_jobs, test_steps, test_waits  # noqa: F401  # they register the behaviours
from tests.conformance.behaviours import PAGE, page

PAGE.write_text(page())
