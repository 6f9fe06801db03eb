"""The block pool: holds, content and eviction."""

from forwardpass.engines.mock.kv_cache import KvCache


def cache(num_blocks: int = 4) -> KvCache:
    return KvCache(num_blocks, 16, prefix_caching=True)


def test_taken_blocks_are_used_until_released():
    """Taking and releasing blocks moves them between free and used, and none is handed out twice."""
    kv = cache(4)
    taken = kv.take(3)

    assert len(set(taken)) == 3
    assert (kv.free_blocks, kv.used_blocks, kv.holders) == (1, 3, 3)

    kv.release(taken)

    assert (kv.free_blocks, kv.used_blocks, kv.holders) == (4, 0, 0)


def test_blocks_are_counted_in_whole_ones():
    """A started block is a whole block."""
    kv = cache()

    assert [kv.blocks_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_a_match_is_the_longest_run_from_the_start():
    """Content after the first unknown block is not a hit, since it depends on all before it."""
    kv = cache()
    first, _, third = kv.take(3)
    kv.remember(first, 101)
    kv.remember(third, 103)

    assert kv.match([101, 102, 103]) == [first]
    assert kv.match([102, 103]) == []


def test_released_content_is_found_and_shared_again():
    """A block that nobody holds keeps its content, and a hit takes it out of the free ones."""
    kv = cache()
    (block,) = kv.take(1)
    kv.remember(block, 101)
    kv.release([block])
    hits = kv.match([101])

    assert kv.unheld(hits) == 1

    kv.share(hits)
    kv.share(hits)

    assert kv.unheld(hits) == 0
    assert (kv.used_blocks, kv.holders, kv.free_blocks) == (1, 2, 3)


def test_a_shared_block_is_free_only_after_its_last_holder():
    """Reference counts keep a block until everyone has released it."""
    kv = cache()
    (block,) = kv.take(1)
    kv.share([block])
    kv.release([block])

    assert kv.used_blocks == 1

    kv.release([block])

    assert kv.used_blocks == 0


def test_the_least_recently_freed_block_loses_its_content_first():
    """Eviction order is the order of release; within a request its end goes before its start."""
    kv = cache(3)
    blocks = kv.take(3)
    for key, block in zip((101, 102, 103), blocks, strict=True):
        kv.remember(block, key)
    kv.release(blocks[:2])
    kv.release(blocks[2:])
    kv.take(1)

    assert [len(kv.match([key])) for key in (101, 102, 103)] == [1, 0, 1]

    kv.take(1)

    assert [len(kv.match([key])) for key in (101, 102, 103)] == [0, 0, 1]


def test_equal_content_is_remembered_once():
    """Two requests that computed the same block do not disturb each other when one of them is evicted."""
    kv = cache(2)
    first, second = kv.take(2)
    kv.remember(first, 101)
    kv.remember(second, 101)
    kv.release([second])
    kv.take(1)

    assert kv.match([101]) == [first]


def test_without_prefix_caching_nothing_is_found():
    """The switch turns hits off and changes nothing else."""
    kv = KvCache(2, 16, prefix_caching=False)
    (block,) = kv.take(1)
    kv.remember(block, 101)

    assert kv.match([101]) == []
