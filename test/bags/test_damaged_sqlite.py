"""Truncated, torn or unfinished SQLite recordings: every intact message is read, and each damaged part reported."""

from __future__ import annotations

import shutil
import sqlite3
import struct
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import SECOND, messages, read, write_bag

from multi_dnn_ros.bags import BagError, BagMessage, BagReader
from multi_dnn_ros.bags.sqlite_pages import _checksum

PAGE = 4096
#: Small messages share a leaf page, large ones have chains of overflow pages.
WRITTEN = [message for pair in zip(messages(60, 300), messages(60, 30_000, seed=2), strict=True) for message in pair]
WRITTEN = [BagMessage(x.topic, x.msgtype, index * SECOND, x.data) for index, x in enumerate(WRITTEN)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_bag(tmp_path_factory.mktemp("bags") / "bag", WRITTEN, "sqlite3").read_bytes()


def saved(data: bytes, folder: Path) -> Path:
    path = folder / "x.db3"
    path.write_bytes(data)
    return path


def test_a_file_truncated_anywhere_gives_every_message_it_still_holds(tmp_path: Path, whole: bytes) -> None:
    # By large message: the offsets of its beginning, on a leaf page, and of its end, on an overflow page.
    spans = {
        message: (whole.index(message.data[:60]), whole.index(message.data[-40:]) + 40) for message in WRITTEN[1::2]
    }
    expected = 0
    for cut in range(8 * PAGE, len(whole), len(whole) // 40 + 1):
        try:
            found, damage = read(saved(whole[:cut], tmp_path))
        except BagError as error:
            found, damage = [], [str(error)]
        assert all(message in WRITTEN for message in found)
        # A leaf page is filled from its end, so it must be complete.
        certain = {message for message, (begin, end) in spans.items() if max(-(-begin // PAGE) * PAGE, end) <= cut}
        assert certain <= set(found), cut
        expected += len(certain)
        assert any("truncated" in text for text in damage)
    assert expected > 1000


def test_truncation_within_the_last_message_loses_only_that_message(tmp_path: Path, whole: bytes) -> None:
    at = whole.index(WRITTEN[-1].data[-40:])
    found, damage = read(saved(whole[:at], tmp_path))
    assert set(WRITTEN) - set(found) == {WRITTEN[-1]}
    assert found == sorted(found, key=lambda message: message.stamp_ns)
    assert any("truncated at byte" in text for text in damage)
    assert any("message 120" in text and "is missing" in text for text in damage)


@pytest.mark.parametrize("folder", [False, True])
def test_a_torn_page_loses_one_message_and_is_reported(tmp_path: Path, whole: bytes, folder: bool) -> None:
    file = write_bag(tmp_path / "bag", WRITTEN, "sqlite3")
    victim = WRITTEN[41]
    page = whole.index(victim.data[12_000:12_040]) // PAGE
    data = bytearray(whole)
    data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    file.write_bytes(data)
    found, damage = read(tmp_path / "bag" if folder else file)
    assert [message for message in WRITTEN if message not in found] == [victim]
    assert found == [message for message in WRITTEN if message != victim]
    assert any(text.startswith("recording.db3: message 42 on page") and f"page {page + 1} " in text for text in damage)


def test_the_messages_of_a_torn_leaf_page_are_counted(tmp_path: Path, whole: bytes) -> None:
    page = whole.index(WRITTEN[60].data[:200]) // PAGE
    data = bytearray(whole)
    data[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    found, damage = read(saved(bytes(data), tmp_path))
    lost = len(WRITTEN) - len(found)
    assert 1 <= lost <= 14
    assert found == [message for message in WRITTEN if message in found]
    assert f"x.db3: {lost} of the messages 1 to 120 are missing with the pages that held them" in damage


def test_a_row_shorter_than_its_columns_is_damage(tmp_path: Path, whole: bytes) -> None:
    data = bytearray(whole[: -PAGE - 100])
    page = whole.index(WRITTEN[0].data[:60]) // PAGE
    (cell,) = struct.unpack_from(">H", data, page * PAGE + 8)  # offset of the first row on the leaf page
    # Row 1, a record of five bytes that are all header: NULL, two integers of eight bytes, a blob.
    data[page * PAGE + cell : page * PAGE + cell + 7] = bytes((5, 1, 5, 0, 6, 6, 12))
    found, damage = read(saved(bytes(data), tmp_path))
    assert WRITTEN[0] not in found
    assert set(WRITTEN[1:60]) <= set(found)
    assert f"x.db3: message 1 on page {page + 1}: value after the end of the record" in damage


def test_a_row_without_its_next_page_is_damage(tmp_path: Path, whole: bytes) -> None:
    data = bytearray(whole[:-PAGE])  # not valid, so that it is read page by page
    end = whole.index(WRITTEN[1].data[:40])
    page = end // PAGE
    (cells,) = struct.unpack_from(">H", data, page * PAGE + 3)
    offsets = sorted(struct.unpack_from(f">{cells}H", data, page * PAGE + 8))
    start = max(offset for offset in offsets if page * PAGE + offset < end)
    following = min((offset for offset in offsets if offset > start), default=PAGE)
    data[page * PAGE + following - 4 : page * PAGE + following] = bytes(4)  # number of the first overflow page
    found, damage = read(saved(bytes(data), tmp_path))
    assert WRITTEN[1] not in found
    (text,) = [line for line in damage if "message 2 on page" in line]
    assert "the number of its next page is 0" in text


def test_a_file_without_its_first_page_is_read(tmp_path: Path, whole: bytes) -> None:
    found, damage = read(saved(bytes(PAGE) + whole[PAGE:], tmp_path))
    assert found == WRITTEN
    assert any("page 1 is damaged" in text for text in damage)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_torn_pages_never_become_other_messages(whole: bytes, data: st.DataObject) -> None:
    content = bytearray(whole)
    for page in data.draw(st.lists(st.integers(1, len(whole) // PAGE - 1), min_size=1, max_size=4)):
        content[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    cut = data.draw(st.integers(len(whole) // 2, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        try:
            found, damage = read(saved(bytes(content[:cut]), Path(folder)))
        except BagError as error:
            found, damage = [], [str(error)]
    wrong = [message for message in found if message not in WRITTEN]
    # Zeros in the last page of a message are not recognized as damage, because SQLite has no checksums.
    assert all(message.data[:12_000] in {x.data[:12_000] for x in WRITTEN} for message in wrong)
    assert len(found) == len(WRITTEN) or damage


def recorder(folder: Path, journal: str) -> sqlite3.Connection:
    """A database as during a recording, with 20 committed messages."""
    file = write_bag(folder, WRITTEN[:20], "sqlite3")
    database = sqlite3.connect(file, isolation_level=None)
    database.execute(f"PRAGMA journal_mode={journal}")
    database.execute("PRAGMA wal_autocheckpoint=0")
    return database


def insert(database: sqlite3.Connection, written: list[BagMessage]) -> None:
    database.executemany(
        "INSERT INTO messages (topic_id, timestamp, data) SELECT id, ?, ? FROM topics WHERE name = ?",
        [(message.stamp_ns, message.data, message.topic) for message in written],
    )


def test_messages_in_the_write_ahead_log_are_read_and_nothing_is_written(tmp_path: Path) -> None:
    """As a killed recorder with `--storage-preset-profile resilient` leaves them."""
    killed = tmp_path / "killed"
    with closing(recorder(tmp_path / "bag", "WAL")) as database:
        for first in range(20, 60, 10):
            database.execute("BEGIN")
            insert(database, WRITTEN[first : first + 10])
            database.execute("COMMIT")
        shutil.copytree(tmp_path / "bag", killed)
    before = {file.name: file.read_bytes() for file in killed.iterdir()}
    for path in (killed, killed / "recording.db3"):
        assert read(path) == (WRITTEN[:60], [])
    assert {file.name: file.read_bytes() for file in killed.iterdir()} == before
    # If the log is truncated in its last transaction, the messages committed before are read.
    log = killed / "recording.db3-wal"
    log.write_bytes(log.read_bytes()[:-100])
    found, damage = read(killed)
    assert found == WRITTEN[:50]
    (text,) = damage
    assert text.startswith("recording.db3: recording.db3-wal: truncated at byte ")


def test_a_wrong_byte_in_the_write_ahead_log_ends_it(tmp_path: Path) -> None:
    with closing(recorder(tmp_path / "bag", "WAL")) as database:
        for first in range(20, 60, 10):
            insert(database, WRITTEN[first : first + 10])
        shutil.copytree(tmp_path / "bag", tmp_path / "killed")
    log = tmp_path / "killed" / "recording.db3-wal"
    data = bytearray(log.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    log.write_bytes(data)
    found, damage = read(tmp_path / "killed")
    assert found == WRITTEN[: len(found)]
    assert 40 <= len(found) < 60
    assert "wrong checksum of the frame at byte" in damage[0]


def test_a_log_that_claims_billions_of_pages_is_read_quickly(tmp_path: Path) -> None:
    """Checksums do not protect against this, because the claim can be made with a correct checksum."""
    file = write_bag(tmp_path / "bag", WRITTEN[:20], "sqlite3")
    header = struct.pack(">8I", 0x377F0682, 3007000, PAGE, 0, 1, 2, 0, 0)[:24]
    sums = _checksum(header, (0, 0), "<")
    log = header + struct.pack(">2I", *sums)
    frame = struct.pack(">4I", 2**32 - 1, 2**32 - 1, 1, 2)  # page number, pages after the commit, salt
    sums = _checksum(bytes(PAGE), _checksum(frame[:8], sums, "<"), "<")
    file.with_name(f"{file.name}-wal").write_bytes(log + frame + struct.pack(">2I", *sums) + bytes(PAGE))
    found, damage = read(file)
    assert found == WRITTEN[:20]
    assert any("pages are complete" in text for text in damage)


def test_an_unfinished_transaction_is_ignored(tmp_path: Path) -> None:
    """With a rollback journal, SQLite's default; the database already has pages of the transaction."""
    with closing(recorder(tmp_path / "bag", "DELETE")) as database:
        database.execute("PRAGMA cache_size=5")
        database.execute("BEGIN")
        insert(database, WRITTEN[20:80])
        shutil.copytree(tmp_path / "bag", tmp_path / "killed")
    assert (tmp_path / "killed" / "recording.db3-journal").stat().st_size
    found, damage = read(tmp_path / "killed")
    assert found == WRITTEN[:20]
    assert any("the unfinished transaction is ignored" in text for text in damage)


def test_deleted_messages_do_not_come_back(tmp_path: Path) -> None:
    file = write_bag(tmp_path / "bag", WRITTEN, "sqlite3")
    with closing(sqlite3.connect(file)) as database:
        database.execute("DELETE FROM messages WHERE id > 30")
        database.commit()
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - PAGE - 100])
    found, damage = read(file)
    assert found == WRITTEN[: len(found)]
    assert len(found) <= 30
    assert damage


def test_damage_reports_do_not_depend_on_the_location(tmp_path: Path, whole: bytes) -> None:
    reports = []
    for name in ("here", "there/far"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        reports.append(read(saved(whole[: len(whole) // 2], folder))[1])
    assert reports[0] == reports[1]
    assert str(tmp_path) not in str(reports)


def test_a_database_that_is_not_a_recording_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db3")) as database:
        database.execute("CREATE TABLE songs (id INTEGER PRIMARY KEY, name TEXT)")
        database.commit()
    with pytest.raises(BagError, match=r"x\.db3"):
        BagReader(tmp_path / "x.db3")
