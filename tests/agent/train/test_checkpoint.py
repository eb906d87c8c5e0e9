"""Every checkpoint on a disk is complete or absent, no matter which process dies when."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gpq_agent.train.checkpoints import state_parts as restore
from gpq_agent.train.checkpoints import store as store_module
from gpq_agent.train.checkpoints.script_checkpoints import ScriptCheckpoints
from gpq_agent.train.checkpoints.state_parts import Parts
from gpq_agent.train.checkpoints.store import LARGE, CheckpointStore, DigestedFile, MemoryRecord, digest, stamp
from gpq_agent.train.errors import GpqTrainError
from gpq_agent.train.loop.resumption import choose_state
from gpq_agent.train.process.environment import Environment

from tests.agent.harm import HARM

from .driver import DEADLINE, FORKSERVER, free_port, wait_until


def write_for_ever(folder: str) -> None:
    """Every element of a checkpoint says which checkpoint it belongs to."""
    store = CheckpointStore(folder)
    step = max((store.read(name)["step"] for name in store.names()), default=0)
    while True:
        step += 1
        store.save({"step": step, "weights": torch.full((300_000,), float(step))}, step, attempt=1)


def test_a_kill_during_a_write_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    last, torn = 0, 0
    for number in range(12):
        writer = FORKSERVER.Process(target=write_for_ever, args=(str(tmp_path),))
        writer.start()
        wait_until(lambda: [name for name in store.names() if name > f"step-{last:012d}"], "a new checkpoint")  # noqa: B023
        # Half the kills wait until a write is in progress.
        if number % 2:
            wait_until(lambda: any(name.endswith(".tmp") for name in os.listdir(store.folder)), "a write")
        writer.kill()
        writer.join()
        torn += any(name.endswith(".tmp") for name in os.listdir(store.folder))
        notices: list[str] = []
        name = store.newest(notices.append)
        assert name is not None
        assert notices == [], "a kill never damages a finished checkpoint"
        state = store.read(name)
        assert state["step"] > last
        assert torch.equal(state["weights"], torch.full((300_000,), float(state["step"])))
        last = state["step"]
    assert torn > 0, "no kill hit a write, so the test shows nothing"


def test_the_newest_two_checkpoints_stay_and_leftovers_are_removed(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    (tmp_path / "gpq" / ".step-000000000001.77.tmp").mkdir()
    for step in (1, 2, 3, 3):
        store.save({"step": step}, step, attempt=1)
    assert store.names() == ["step-000000000003.1", "step-000000000003"]
    assert sorted(os.listdir(store.folder)) == sorted(store.names())


@pytest.mark.parametrize("damage", ["truncate", "flip", "manifest", "missing"])
def test_a_damaged_checkpoint_is_skipped_with_a_notice(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(str(tmp_path))
    store.save({"step": 1}, 1, attempt=1)
    newest = Path(store.save({"step": 2}, 2, attempt=1).path)
    content = (newest / "state.pt").read_bytes()
    if damage == "truncate":
        (newest / "state.pt").write_bytes(content[:-1])
    elif damage == "flip":
        middle = len(content) // 2
        (newest / "state.pt").write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "manifest":
        (newest / "manifest.json").write_text("{")
    else:
        (newest / "state.pt").unlink()
    notices: list[str] = []
    name = store.newest(notices.append)
    assert name == "step-000000000001"
    assert store.read(name)["step"] == 1
    assert len(notices) == 1
    assert "step-000000000002 is damaged" in notices[0]


def test_a_damaged_checkpoint_takes_the_place_of_no_whole_one(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    for step in (5, 9):
        path = Path(store.save({"step": step}, step, attempt=1).path)
    (path / "state.pt").write_bytes(b"")
    again = CheckpointStore(str(tmp_path))
    assert again.newest(lambda line: None) == "step-000000000005"
    for step, whole in ((7, [7, 5]), (8, [8, 7])):
        again.save({"step": step}, step, attempt=2)
        assert again.names() == [f"step-{number:012d}" for number in whole]


@pytest.mark.parametrize("name", ["manifest.json", "state.pt"])
def test_a_checkpoint_with_any_damaged_file_is_skipped(tmp_path: Path, name: str) -> None:
    for number, (kind, harm) in enumerate(HARM.items()):
        store = CheckpointStore(str(tmp_path / str(number)))
        for step in (1, 2):
            store.save({"step": step}, step, attempt=1)
        path = Path(store.folder, "step-000000000002", name)
        path.unlink()
        harm(path)
        notices: list[str] = []
        assert store.newest(notices.append) == "step-000000000001", kind
        assert "step-000000000002 is damaged" in notices[0], kind


@pytest.mark.parametrize("sizes", [[0], [5, LARGE - 1, LARGE, 1], [3 * LARGE, 7, 2 * LARGE + 1]])
def test_the_digest_of_a_written_file_is_that_of_its_content(tmp_path: Path, sizes: list[int]) -> None:
    blocks = [bytearray(os.urandom(size)) for size in sizes]
    content = b"".join(blocks)
    with (tmp_path / "file").open("wb") as stream, DigestedFile(stream) as file:
        for block in blocks:
            assert file.write(block) == len(block)
            block[:] = bytes(len(block))  # its memory is used again, as torch does
        told = file.finish()
    assert (tmp_path / "file").read_bytes() == content
    assert told == digest(str(tmp_path / "file")) == hashlib.sha256(content).hexdigest()


def test_a_checkpoint_of_this_boot_is_read_again_only_if_its_file_was_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(str(tmp_path))
    folder = Path(store.save({"weights": torch.ones(1000)}, 1, attempt=1).path)
    looks: list[str] = []

    def watched(path: str) -> str:
        looks.append(path)
        return digest(path)

    monkeypatch.setattr(store_module, "digest", watched)
    assert store.problem(folder.name) == ""
    assert looks == []
    (folder / "state.pt").touch()
    assert store.problem(folder.name) == ""
    assert looks == [str(folder / "state.pt")]


def test_a_checkpoint_of_an_earlier_boot_or_another_server_is_read_before_it_is_loaded(tmp_path: Path) -> None:
    """A power cut may lose what was written, and a copy may go wrong. Both keep the time of the file."""
    store = CheckpointStore(str(tmp_path))
    folder = Path(store.save({"weights": torch.ones(1000)}, 1, attempt=1).path)
    manifest = json.loads((folder / "manifest.json").read_text())
    content = (folder / "state.pt").read_bytes()
    (folder / "state.pt").write_bytes(content[:-1] + b"x")
    for fact, value in (("boot", "another"), ("inode", 0), ("device", 0)):
        stamp_of_file = {**stamp(str(folder / "state.pt")), fact: value}
        (folder / "manifest.json").write_text(json.dumps({**manifest, "stamp": stamp_of_file}))
        assert store.problem(folder.name) == "content differs from the manifest"


def test_a_damaged_memory_record_counts_as_empty(tmp_path: Path) -> None:
    for number, (kind, harm) in enumerate(HARM.items()):
        folder = tmp_path / str(number)
        (folder / "gpq").mkdir(parents=True)
        harm(folder / "gpq" / "memory.json")
        assert MemoryRecord(str(folder)).bound() is None, kind
        assert MemoryRecord(str(folder)).failed(8) == 6, kind
        assert MemoryRecord(str(folder)).bound() == 6, kind


def test_a_damaged_record_of_own_saves_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    for number, (kind, harm) in enumerate(HARM.items()):
        if kind == "nothing in it":
            continue  # nothing is saved yet
        folder = tmp_path / str(number)
        (folder / "own").mkdir(parents=True)
        harm(folder / "own" / "saved.json")
        with pytest.raises(GpqTrainError, match=r"saved\.json"):
            ScriptCheckpoints(str(folder))


def test_a_failed_write_raises_and_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    store.save({"step": 1}, 1, attempt=1)
    with pytest.raises((AttributeError, TypeError)):
        store.save({"step": lambda: 2}, 2, attempt=1)
    assert store.names() == ["step-000000000001"]
    assert os.listdir(store.folder) == store.names()


class Counter:
    def __init__(self) -> None:
        self.tensor = torch.zeros(2)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"tensor": self.tensor}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.tensor = state["tensor"]


def test_a_part_registered_late_gets_its_state_and_owns_it(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    store.save({"user:1": {"tensor": torch.tensor([4.0, 5.0])}}, 1, attempt=1)
    parts, counter = Parts(), Counter()
    parts.restore(store.read("step-000000000001"))
    assert parts.state()["user:1"]["tensor"].tolist() == [4.0, 5.0], "kept although no part has asked for it yet"
    parts.add("user:1", counter)
    for step in (2, 3):
        store.save({}, step, attempt=1)
    counter.tensor += 1  # the file that it came from is gone
    assert counter.tensor.tolist() == [5.0, 6.0]
    with pytest.raises(GpqTrainError, match="already"):
        parts.add("user:1", counter)


def test_saves_by_the_script_count_only_after_commit(tmp_path: Path) -> None:
    saves = ScriptCheckpoints(str(tmp_path))
    assert (saves.start_step, saves.resume_path) == (0, None)
    for step in (5, 9, 14):
        Path(saves.next_path(), "weights").write_text(str(step))
        saves.commit(step)
    Path(saves.next_path(), "weights").write_text("half written")
    again = ScriptCheckpoints(str(tmp_path))
    assert again.start_step == 14
    assert Path(str(again.resume_path), "weights").read_text() == "14"
    assert len(list((tmp_path / "own").glob("save-*"))) == 3, "two complete checkpoints and one in progress"


def test_a_restored_optimizer_does_not_use_the_memory_of_the_file(tmp_path: Path) -> None:
    weights = torch.nn.Parameter(torch.ones(1000))
    rate = torch.tensor(0.1)
    first, second = (torch.optim.AdamW([weights], lr=rate.clone()) for _ in range(2))
    weights.grad = torch.full_like(weights, 0.5)
    first.step()
    torch.save(first.state_dict(), tmp_path / "state")
    restore._load(second, torch.load(tmp_path / "state", mmap=True))
    with (tmp_path / "state").open("r+b") as stream:
        stream.write(bytes((tmp_path / "state").stat().st_size))
    before, after = first.state[weights], second.state[weights]
    assert {name: torch.equal(before[name], after[name]) for name in before} == dict.fromkeys(before, True)
    assert torch.equal(second.param_groups[0]["lr"], rate)


def choose(rank: int, port: int, folder: Path) -> None:
    """Replica 0 is on a server that has a checkpoint, replicas 1 and 2 are on one that has another of the same step."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=3)
    store = CheckpointStore(str(folder / ("other" if rank else "first")))
    environment = Environment(rank=rank, local_rank=max(rank - 1, 0), replicas=3, launched=True)
    with pytest.raises(GpqTrainError, match="a server of the job lacks the checkpoint step-000000000001"):
        choose_state(store, dist.group.WORLD, environment, lambda line: None)
    dist.destroy_process_group()


def test_no_replica_resumes_if_a_server_lacks_the_checkpoint_of_rank_0(tmp_path: Path) -> None:
    for name in ("first", "other"):
        CheckpointStore(str(tmp_path / name)).save({"weights": torch.ones(1), "server": name}, 1, attempt=1)
    port = free_port()
    replicas = [FORKSERVER.Process(target=choose, args=(rank, port, tmp_path)) for rank in range(3)]
    for replica in replicas:
        replica.start()
    try:
        for replica in replicas:
            replica.join(DEADLINE)
        assert [replica.exitcode for replica in replicas] == [0, 0, 0]
    finally:
        for replica in replicas:
            replica.kill()
            replica.join()
