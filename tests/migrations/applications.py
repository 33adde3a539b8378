"""An application as its developers have it: models, the stock Alembic environment, and commands run in it."""

from __future__ import annotations

import importlib
import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

from tests.fixtures.variants import variants

MODELS = """
from __future__ import annotations

from uuid import UUID

from sqlalchemy import ForeignKey, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_jobqueue.models import JobMixin


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass


class MailJob(JobMixin[str], Base, queue_schema="jobs", queue_prefix="mail_", queue_pipeline=True):
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenant.id"), index=True)
    code: Mapped[str | None] = mapped_column(unique=True)


class Tenant(Base):
    __tablename__ = "tenant"
    id: Mapped[int] = mapped_column(primary_key=True)


class Order(Base):
    __tablename__ = "order"
    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job | None] = relationship()
"""
CONVENTION = """{
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }"""
NAMED_MODELS = MODELS.replace(
    "Base(DeclarativeBase):\n    pass", f"Base(DeclarativeBase):\n    metadata = MetaData(naming_convention={CONVENTION})"
)
PLAIN_MODELS = """
from sqlalchemy.orm import DeclarativeBase

from sa_jobqueue.models import JobMixin


class Base(DeclarativeBase):
    pass


class Job(JobMixin, Base):
    pass
"""
NO_QUEUE = "from sqlalchemy.orm import DeclarativeBase\n\n\nclass Base(DeclarativeBase):\n    pass\n"

STOCK_TARGET = "target_metadata = None\n"

both_scopes = pytest.mark.parametrize(
    "configure",
    variants(
        ["", "include_schemas=True"],
        default=["include_schemas=True"],
        id=lambda all_schemas: "all schemas" if all_schemas else "default schema only",
    ),
)
"""The default schema alone in the long run."""


class Application:
    """A package of one module of models beside Alembic's generic environment, which names that module and nothing else."""

    def __init__(self, place: Path, engine: Engine, models: str, *, configure: str = "") -> None:
        self.engine = engine
        self._name = f"application_{abs(hash(place))}"
        self._module = place / f"{self._name}.py"
        self._output = io.StringIO()
        self._config = Config(output_buffer=self._output, stdout=self._output)
        self._config.set_main_option("script_location", str(place / "migrations"))
        url = engine.url.render_as_string(hide_password=False)
        self._config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
        self.versions = place / "migrations" / "versions"
        self.versions.mkdir(parents=True)
        stock = Path(self._config.get_template_directory()) / "generic"
        shutil.copy(stock / "script.py.mako", place / "migrations")
        environment = (stock / "env.py").read_text()
        assert STOCK_TARGET in environment
        target = f"from {self._name} import Base\ntarget_metadata = Base.metadata\n"
        environment = environment.replace(STOCK_TARGET, target)
        if configure:
            environment = environment.replace(
                "target_metadata=target_metadata\n", f"target_metadata=target_metadata, {configure}\n"
            )
        assert "jobqueue" not in environment or configure
        (place / "migrations" / "env.py").write_text(environment)
        self.edit(models)

    def edit(self, models: str) -> None:
        """Rewrite the models, as if the program had been restarted with them."""
        self._module.write_text(models)
        sys.modules.pop(self._name, None)
        sys.path.insert(0, str(self._module.parent))
        try:
            importlib.invalidate_caches()
            shutil.rmtree(self._module.parent / "__pycache__", ignore_errors=True)
            self.models: ModuleType = importlib.import_module(self._name)
        finally:
            sys.path.pop(0)

    def close(self) -> None:
        """Forget the module."""
        sys.modules.pop(self._name, None)

    def autogenerate(self, *, edit: Callable[[str], str] = str) -> str:
        """Write a revision of the pending changes, changed by `edit`; return the bodies of its two functions."""
        script: Any = command.revision(self._config, autogenerate=True, message="change")
        path = Path(script.path)
        text = edit(path.read_text())
        path.write_text(text)
        # Alembic has loaded it: compiled in the same second, a text of the same length would pass for the old one.
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
        return text[text.index("def upgrade") :]

    def revision(self, *, upgrade: str, downgrade: str) -> None:
        """Write an empty revision, with one line in each of its functions."""
        script: Any = command.revision(self._config, message="own")
        path = Path(script.path)
        for function, line in (("upgrade", upgrade), ("downgrade", downgrade)):
            start, end = path.read_text().split(f"def {function}", 1)
            path.write_text(f"{start}def {function}{end.replace('pass', line, 1)}")

    def upgrade(self, revision: str = "head", *, sql: bool = False) -> str:
        """Run `alembic upgrade`; with `sql`, return its output."""
        return self._run(command.upgrade, revision, sql=sql)

    def downgrade(self, revision: str, *, sql: bool = False) -> str:
        """Run `alembic downgrade`; with `sql`, return its output."""
        return self._run(command.downgrade, revision, sql=sql)

    def check(self) -> None:
        """Run `alembic check`; raises its error when changes are pending."""
        self._run(command.check)

    def _run(self, run: Any, *arguments: Any, **options: Any) -> str:
        self._output.seek(0)
        self._output.truncate()
        run(self._config, *arguments, **options)
        return self._output.getvalue()


def commands(revision: str) -> list[str]:
    """Return the commands of a revision's upgrade."""
    body = revision[: revision.index("def downgrade")]
    return [line.strip() for line in body.splitlines() if line.strip().startswith(("op.", "migrate_job_queue("))]


def run_script(engine: Engine, script: str) -> None:
    """Execute a script as psql would: whole and without parameters, so nothing in it is interpreted."""
    with engine.connect() as connection:
        connection.connection.cursor().execute(script)
