"""Block sizes of the kernels, and commands that need an accelerator."""

import jax
import pytest

from kernels_pallas import autotune, gpu_check, settings
from kernels_pallas.gpu import autotune as autotune_gpu
from kernels_pallas.gpu import blocks as gpu_blocks
from kernels_pallas.gpu.cards import CARDS, by_name
from kernels_pallas.linear_token_stats.shapes import Shape
from kernels_pallas.tpu import autotune as autotune_tpu
from kernels_pallas.tpu import mosaic

H100 = CARDS[1]


def test_cards_by_name():
    assert by_name("NVIDIA H100 80GB HBM3") == H100
    assert by_name("NVIDIA A100-SXM4-80GB") == CARDS[0]
    assert by_name("cpu") is None


@pytest.mark.parametrize("row_blocks", [1, 3, 32, 64, 131, 133, 1000])
def test_splits_keep_nine_tenths_of_the_card_busy(row_blocks):
    vocab_blocks = 1187
    splits = gpu_blocks.splits_for(row_blocks, vocab_blocks, H100)
    longest = -(-vocab_blocks // splits)
    assert longest >= 4
    waves = -(-row_blocks * splits // H100.multiprocessors)
    busy = row_blocks * vocab_blocks / (waves * longest * H100.multiprocessors)
    assert busy > 0.9


def test_small_vocabularies_are_not_split():
    assert gpu_blocks.splits_for(1, 7, H100) == 1


@pytest.mark.parametrize(("num_rows", "vocabulary"), [(8, 1), (8192, 151936), (1 << 20, 50257)])
def test_chunks_cover_the_vocabulary_within_their_bytes(num_rows, vocabulary):
    chunk = gpu_blocks.chunk_columns(num_rows, vocabulary, 2, 256)
    assert chunk % 256 == 0
    chunks = -(-vocabulary // chunk)
    assert chunks * chunk - vocabulary < 256 * chunks  # no chunk in vain
    assert chunk <= max(1024, gpu_blocks.CHUNK_BYTES // (2 * num_rows)) + 256


@pytest.fixture
def own_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_PALLAS_BLOCKS", str(tmp_path / "some" / "blocks.json"))
    settings.measured.cache_clear()
    yield
    settings.measured.cache_clear()


def test_what_was_measured_overrides_the_heuristic(own_settings):
    ours = gpu_blocks.heuristic("linear_kl", "float32", H100)
    tiles = ours.forward._replace(rows=32)
    ours = ours._replace(forward=tiles, splits=7)
    settings.keep("linear_kl/H100/float32", ours)
    assert gpu_blocks.blocks_for("linear_kl", "float32", H100) == ours
    other = gpu_blocks.blocks_for("linear_kl", "float32", CARDS[0])
    assert other == gpu_blocks.heuristic("linear_kl", "float32", CARDS[0])


TILES = gpu_blocks.Tiles(16, 32, 16, 4, 2)
BLOCKS = gpu_blocks.GpuBlocks(TILES, TILES, TILES)


@pytest.mark.errors
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TILES, "config must be GpuBlocks on GPUs, got Tiles"),
        (BLOCKS._replace(product=(1, 2)), "product must be Tiles, got tuple"),
        (BLOCKS._replace(forward=TILES._replace(rows=24)), "rows of forward .* two .* got 24"),
        (BLOCKS._replace(product=TILES._replace(depth=8)), "depth of product .* 16 .* got 8"),
        (BLOCKS._replace(gradient=TILES._replace(warps=3)), "warps of gradient .* got 3"),
        (BLOCKS._replace(forward=TILES._replace(stages=0)), "stages of forward .* got 0"),
        (BLOCKS._replace(splits=0), "splits must be whole and 1 at least, got 0"),
        (BLOCKS._replace(chunk=40), "chunk must be a multiple of 16 and 16 at least, got 40"),
        (BLOCKS._replace(form="ampere"), "form of linear_token_stats must be .*, got 'ampere'"),
    ],
)
def test_bad_blocks_raise_one_line(config, message):
    with pytest.raises(ValueError, match=message) as error:
        gpu_blocks.blocks_of(config, "linear_token_stats", "float32")
    assert "\n" not in str(error.value)


@pytest.mark.errors
def test_only_the_form_of_the_card_runs_on_it(monkeypatch):
    blocks = BLOCKS._replace(form="hopper")
    if not gpu_blocks.HAS_MOSAIC:
        with pytest.raises(ValueError, match=r"form 'hopper' needs jax 0\.12, this is 0\."):
            gpu_blocks.form_for(blocks, True)
        return
    assert gpu_blocks.form_for(blocks, True) == "hopper"
    assert gpu_blocks.form_for(BLOCKS, True) == "triton"
    owns = {}
    for card in CARDS:
        monkeypatch.setattr(gpu_blocks, "current", lambda card=card: card)
        owns[card.name] = gpu_blocks.form_for(BLOCKS, False)
    assert owns == {"A100": "triton", "H100": "hopper", "H200": "hopper", "B200": "blackwell"}
    with pytest.raises(ValueError, match="'hopper' cannot run on B200, whose own is 'blackwell'"):
        gpu_blocks.form_for(blocks, False)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["linear_token_stats", "linear_kl", "categorical_kl"])
def test_gpu_check_finds_the_interpreted_kernels_right(kernel):
    linear = "linear" in kernel
    config = gpu_blocks.GpuBlocks(TILES, TILES, TILES, splits=2, chunk=64) if linear else None
    case = gpu_check.Case(kernel, "float32", transposed=linear)
    assert max(gpu_check.check(case, Shape(21, 24, 70), config, interpret=True)) < 1e-5


@pytest.fixture
def clock(monkeypatch):
    """clock(module, times): its trials run, but take these times, one after the other."""

    def install(module, times):
        left = iter(times)

        def run(function, *arrays):
            jax.block_until_ready(jax.jit(function)(*arrays))
            return next(left)

        monkeypatch.setattr(module, "seconds_or_never", run)

    return install


@pytest.mark.slow
def test_autotune_takes_the_fastest_of_what_there_is(clock):
    clock(autotune_gpu, [2.0, 1.0, 1.5, float("inf")])
    tiles = [gpu_blocks.Tiles(rows, 64, 0, 4, 2) for rows in (8, 32)]
    case = gpu_check.Case("token_stats", "float32")
    found = autotune_gpu.best(case, H100, Shape(64, 8, 256), lambda *_: tiles, interpret=True)
    assert found.forward == tiles[1]
    assert found.gradient == tiles[0]
    assert found.product == gpu_blocks.heuristic("token_stats", "float32", H100).product


@pytest.mark.slow
def test_autotune_on_a_tpu_is_read_back_and_cut_down_where_it_does_not_fit(own_settings, clock):
    clock(autotune_tpu, [2.0, 1.0] * 3)
    shape, tried = Shape(32, 8, 256), [mosaic.Blocks(rows, 256, 128) for rows in (1024, 32)]
    found = autotune_tpu.best("linear_kl", "float32", shape, lambda _: tried, interpret=True)
    assert found == mosaic.Config(*[tried[1]] * 3)
    settings.keep(mosaic.settings_key("linear_kl", "float32"), found)
    assert autotune_tpu.heuristic("linear_kl", "float32", Shape(1024, 8, 4096)) == found
    small = autotune_tpu.heuristic("linear_kl", "float32", Shape(32, 8, 128))
    assert small.forward == mosaic.Blocks(32, 128, 128)
    other = autotune_tpu.heuristic("linear_kl", "bfloat16", Shape(1024, 8, 4096))
    assert other.forward.rows > 32


@pytest.mark.parametrize("chosen", [mosaic.Blocks(512, 1024, 256), mosaic.Blocks(128, 128, 128)])
def test_candidates_are_whole_registers_around_the_heuristic(chosen):
    tried = list(autotune_tpu.candidates(chosen))
    assert tried[0] == chosen
    assert len(set(tried)) == len(tried) >= 4
    for blocks in tried:
        assert blocks.strip <= blocks.vocabulary
        assert all(n % 128 == 0 and 1 / 2 <= n / m <= 2 for n, m in zip(blocks, chosen))


@pytest.mark.parametrize("command", [gpu_check, autotune])
def test_without_a_gpu_commands_say_so_in_one_line(command, capsys):
    assert command.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "no GPU here" in said.err
