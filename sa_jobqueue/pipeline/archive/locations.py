"""The archive's place: where files lie before and after they are seen, and moving them so that a crash loses none.

    PATH/_run=<id>/jobs/completed_date=2026-01-31/<file>     a run's files until they are verified
    PATH/jobs/completed_date=2026-01-31/run=<id>/<file>      and after that

Readers of Parquet folders pass over names that begin with an underscore. A file is the archive's by its place and its name,
`part-*.parquet`; all others are never read, and never deleted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import pyarrow as pa
from pyarrow import fs

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.archive.arrow import DAY
from sa_jobqueue.pipeline.archive.errors import ArchivePathError
from sa_jobqueue.pipeline.history import DATASETS, Dataset

FILES: Final = "part-*.parquet"
"""Names of the files that engines write."""
_LIST: Final = "_files.json"
"""In the hidden folder of a run: the names of its files, once they are complete."""
_PLACE: Final = re.compile(rf"/{DAY}=(?P<day>[^/]+)/run=[0-9a-f-]{{36}}/part-[^/]+\.parquet$")


@dataclass(frozen=True, slots=True)
class File:
    """One file of a run."""

    dataset: Dataset
    day: str
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Location:
    """A folder of the local file system, or of one that pyarrow has: `s3://bucket/archive`, `gs://`, `hdfs://`."""

    name: str
    """Path as stored in the ledger."""
    files: Any
    """A `pyarrow.fs.FileSystem`."""
    root: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Location:
        """Read a path or URI. Raises: InvalidOptionError."""
        text = os.fspath(path)
        if not text:
            raise InvalidOptionError("path", "must be a folder or a URI such as s3://bucket/archive")
        if "://" in text and not text.startswith("file://"):
            try:
                system, root = fs.FileSystem.from_uri(text)
            except (pa.ArrowInvalid, OSError) as error:
                raise InvalidOptionError("path", f"is not a URI that pyarrow can open: {error}") from error
            return cls(text.rstrip("/"), system, root.rstrip("/"))
        root = str(Path(text.removeprefix("file://")).expanduser().absolute())
        return cls(root, fs.LocalFileSystem(), root)

    @property
    def is_local(self) -> bool:
        """Whether files can be synchronised with the disk."""
        return isinstance(self.files, fs.LocalFileSystem)

    @contextmanager
    def usable(self) -> Iterator[None]:
        """Turn errors of the file system into ours."""
        try:
            yield
        except ArchivePathError:
            raise
        except OSError as error:
            raise ArchivePathError(self.name, str(error)) from error

    def check(self) -> None:
        """Make the folder, and write and remove a file in it. Raises: ArchivePathError."""
        probe = f"{self.root}/_probe-{uuid4()}"
        with self.usable():
            self.files.create_dir(self.root, recursive=True)
            with self.files.open_output_stream(probe) as stream:
                stream.write(b"sa_jobqueue")
            self.files.delete_file(probe)

    def hidden(self, run_id: UUID) -> str:
        """Return the folder of a run until its files are verified."""
        return f"{self.root}/_run={run_id}"

    def hidden_folder(self, run_id: UUID, dataset: Dataset, day: str) -> str:
        """Return the folder of one day of a dataset, until then."""
        return f"{self.hidden(run_id)}/{dataset.name}/{DAY}={day}"

    def shown_folder(self, run_id: UUID, dataset: Dataset, day: str) -> str:
        """Return the same after that."""
        return f"{self.root}/{dataset.name}/{DAY}={day}/run={run_id}"

    def list_written(self, run_id: UUID, paths: Iterable[str]) -> None:
        """Write the list of a run's files, so that those of tasks that failed, or outlive their driver, are never shown."""
        path = f"{self.hidden(run_id)}/{_LIST}"
        self.files.create_dir(self.hidden(run_id))
        with self.files.open_output_stream(path) as stream:
            stream.write(json.dumps([path_of_file.rpartition("/")[2] for path_of_file in paths]).encode())
        self.sync(path)

    def hidden_files(self, run_id: UUID) -> list[File]:
        """Return the listed files of a run that are not to be seen yet, sorted."""
        files: list[File] = []
        path = f"{self.hidden(run_id)}/{_LIST}"
        if self.files.get_file_info(path).type == fs.FileType.NotFound:
            return files  # all of them are shown
        with self.files.open_input_stream(path) as stream:
            listed = set(json.loads(stream.read()))
        for dataset in DATASETS.values():
            for day, folder in self._days(f"{self.hidden(run_id)}/{dataset.name}"):
                files += [
                    File(dataset, day, entry.path, entry.size) for entry in self._list(folder) if entry.base_name in listed
                ]
        return files

    def shown_files(self, run_id: UUID) -> list[File]:
        """Return the files of a run that readers see, sorted. Looks into one folder a day, not into other runs."""
        files = []
        for dataset in DATASETS.values():
            for day, _ in self._days(f"{self.root}/{dataset.name}"):
                folder = self.shown_folder(run_id, dataset, day)
                files += [File(dataset, day, entry.path, entry.size) for entry in self._list(folder)]
        return files

    def all_files(self, dataset: Dataset) -> list[File]:
        """Return the files of a dataset that readers see, of every run, sorted."""
        listed = self.files.get_file_info(
            fs.FileSelector(f"{self.root}/{dataset.name}", allow_not_found=True, recursive=True)
        )
        places = [(entry, _PLACE.search(entry.path)) for entry in listed if entry.is_file]
        files = [File(dataset, place["day"], entry.path, entry.size) for entry, place in places if place]
        return sorted(files, key=lambda file: file.path)

    def show(self, run_id: UUID, file: File) -> None:
        """Move one file to where readers see it."""
        folder = self.shown_folder(run_id, file.dataset, file.day)
        self.files.create_dir(folder, recursive=True)
        self.files.move(file.path, f"{folder}/{file.path.rpartition('/')[2]}")
        self.sync_folders(folder)

    def discard(self, run_id: UUID) -> None:
        """Delete the hidden folder of a run. Raises: ArchivePathError if the archive has not written a file in it."""
        hidden = self.hidden(run_id)
        selector = fs.FileSelector(hidden, allow_not_found=True, recursive=True)
        self._own(self.files.get_file_info(selector))
        if self.files.get_file_info(hidden).type != fs.FileType.NotFound:
            self.files.delete_dir(hidden)

    def paths(self, dataset: Dataset) -> list[str]:
        """Return all files of a dataset that readers see, of every run, sorted."""
        return [file.path for file in self.all_files(dataset)]

    def sync(self, path: str) -> None:
        """Wait until a file's content is on the disk. Does nothing if the location is not a local disk."""
        if self.is_local:
            _fsync(path)

    def sync_folders(self, folder: str) -> None:
        """Wait until the names in a folder, and in those around it up to the archive's, are on the disk."""
        if self.is_local:
            parent = Path(folder)
            while parent != Path(self.root).parent:
                _fsync(parent)
                parent = parent.parent

    def _days(self, folder: str) -> Iterator[tuple[str, str]]:
        for entry in self.files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
            name, _, day = entry.base_name.partition("=")
            if entry.type == fs.FileType.Directory and name == DAY:
                yield day, entry.path

    def _list(self, folder: str) -> list[Any]:
        return self._own(self.files.get_file_info(fs.FileSelector(folder, allow_not_found=True)))

    def _own(self, listed: list[Any]) -> list[Any]:
        """Return the files of the archive, sorted. Raises: ArchivePathError for others."""
        own_files = sorted(
            (entry for entry in listed if entry.is_file and entry.base_name[0] not in "._"),
            key=lambda entry: str(entry.path),
        )
        for entry in own_files:
            if not fnmatch(entry.base_name, FILES):
                reason = "is no file of the archive; it is neither read nor deleted: move it elsewhere, and archive again"
                raise ArchivePathError(entry.path, reason)
        return own_files


def _fsync(path: str | Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
