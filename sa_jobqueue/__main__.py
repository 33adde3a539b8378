"""`python -m sa_jobqueue`: the command line, where its script is not on the path."""

from sa_jobqueue.cli import main

if __name__ == "__main__":
    main(prog_name="sa-jobqueue")
