"""Some formats show whether a file is whole."""

from __future__ import annotations

import io
import json
import pickle
import zipfile

from dljob_sidecar.checkpoints.recognizing.formats import OLD_TORCH, Finding, examine
from tests.sidecar.savers import make_content


def make_zip() -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("data.pkl", b"weights" * 1000)
    return whole.getvalue()


def make_hdf5(version: int, *, is_open: bool = False) -> bytes:
    """Return a superblock that promises 4,096 bytes, and as many."""
    head = bytearray(b"\x89HDF\r\n\x1a\n" + bytes([version]) + bytes(4096 - 9))
    at = {0: 40, 1: 44, 2: 28, 3: 28}[version]
    head[at : at + 8] = (4096).to_bytes(8, "little")
    head[11] |= is_open and version == 3
    return bytes(head)


WHOLE = {
    "model.pt": make_zip(),
    "model.npz": make_zip(),
    "model.safetensors": make_content("model.safetensors", 1),
    "weights.h5": make_hdf5(0),
    "weights.hdf5": make_hdf5(1),
    "weights.keras.h5": make_hdf5(3),
    "trainer_state.json": json.dumps({"step": 1}).encode(),
    "lines.json": b'{"step": 1}\n{"step": 2}\n',
    ".metadata": pickle.dumps({"shards": list(range(100))}),
    "state.pkl": pickle.dumps("state"),
}


def test_whole_file_is_proven_and_cut_file_is_faulty(tmp_path):
    for name, whole in WHOLE.items():
        file = tmp_path / name
        file.write_bytes(whole)
        assert examine(str(file)) == Finding(is_proven=True), name
        # From the mark of the format to the last byte but one.
        shortest = 9 if name.endswith("json") else 64
        for length in {shortest, len(whole) // 2, len(whole) - 1} - {len(whole)}:
            if name != "lines.json" and length < len(whole):
                file.write_bytes(whole[:length])
                assert examine(str(file)).fault, (name, length)


def test_empty_or_missing_file_is_faulty(tmp_path):
    for name in ("model.pt", "anything", "events.json"):
        (tmp_path / name).touch()
        assert examine(str(tmp_path / name)) == Finding("is empty")
    assert "cannot be read" in examine(str(tmp_path / "gone")).fault


def test_open_hdf5_file_is_faulty(tmp_path):
    (tmp_path / "w.h5").write_bytes(make_hdf5(3, is_open=True))
    assert examine(str(tmp_path / "w.h5")).fault


def test_unknown_format_has_no_finding(tmp_path):
    for name, content in {"weights.bin": b"\0" * 10, "old.pkl": OLD_TORCH + b"\0" * 100}.items():
        (tmp_path / name).write_bytes(content)
        assert examine(str(tmp_path / name)) == Finding()
