"""`python -m sa_jobqueue.cli`: the same as `python -m sa_jobqueue`."""

from sa_jobqueue.cli import main

if __name__ == "__main__":
    main(prog_name="sa-jobqueue")
