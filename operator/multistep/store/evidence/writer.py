"""Writes a finished trial's evidence to the volume. The list of all files is first, then the statement and its signature."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from multistep.store.evidence import file_list
from multistep.store.evidence.file_list import ListDigester, ListDigests, ListedItem
from multistep.store.files import known_digests
from multistep.store.files.file_trees import TreeEntry, walk
from multistep.store.files.known_digests import KnownDigests
from multistep.store.files.trial_key import TrialKey
from multistep.store.trial import directory
from multistep.store.trial.collect_files import uploaded_objects
from multistep.store.trial.directory import TrialDirectory
from multistep.store.trial.disk_calls import Disk
from multistep.store.trial.unpack_download import UploadedObject


class EvidenceWriter:
    """Writes the evidence of all trials on the volume."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def list_files(self, key: TrialKey) -> ListDigests:
        """Write the list of a trial's files, and return its digests. No file may change afterwards."""
        return await self._disk.run(key, "listing results", _list_files)

    async def write(self, key: TrialKey, statement: bytes, envelope: bytes | None) -> None:
        """Write the statement and, if there is one, the envelope that signs it."""
        await self._disk.run(key, "writing evidence", partial(_write, text=statement, envelope=envelope))


def _list_files(to: TrialDirectory) -> ListDigests:
    known, digesting = KnownDigests(to.notes(known_digests.NOTE)), ListDigester()
    to.check()
    with to.work() as work:
        with (work / file_list.FILES).open("xb") as out:
            for item in _items(to.path, known, uploaded_objects(to)):
                line = item.line()
                digesting.add(item, line)
                out.write(line)
            out.flush()
            os.fsync(out.fileno())
        to.check()
        (work / file_list.FILES).replace(to.path / file_list.FILES)
    directory.sync_to_disk(to.path)
    if known.new:
        to.note(known_digests.NOTE, b"".join(known.new))
    return digesting.digests()


def _items(top: Path, known: KnownDigests, sent: Mapping[str, UploadedObject]) -> Iterator[ListedItem]:
    for entry in walk(top, hidden=False):
        if entry.path not in file_list.OWN and (item := _item(entry, known, sent)) is not None:
            yield item


def _item(entry: TreeEntry, known: KnownDigests, sent: Mapping[str, UploadedObject]) -> ListedItem | None:
    """Return an entry's item for the list of files, or None for file types that results do not include, e.g. sockets."""
    mode = entry.info.st_mode
    if stat.S_ISDIR(mode):
        return ListedItem(entry.path, "directory")
    if stat.S_ISLNK(mode):
        return ListedItem(entry.path, "link", target=entry.link_target())
    if not stat.S_ISREG(mode):
        return None
    if not entry.info.st_size and (there := sent.get(entry.path)) is not None:
        return ListedItem(entry.path, "file", there.size, there.sha256, by_pod=True)
    fd = entry.open()
    try:
        sha256, size = known.sha256(fd)
    finally:
        os.close(fd)
    return ListedItem(entry.path, "file", size, sha256)


def _write(to: TrialDirectory, text: bytes, envelope: bytes | None) -> None:
    to.check()
    if envelope is None:
        (to.path / file_list.ENVELOPE).unlink(missing_ok=True)
    else:
        directory.write_file(to.path / file_list.ENVELOPE, envelope)
    directory.write_file(to.path / file_list.STATEMENT, text)
