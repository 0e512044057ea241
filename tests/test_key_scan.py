"""Random numbers of all steps before the first step are those that each step would draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.extend.core import jaxprs_in_params

from purejaxppo import key_scan

pytestmark = pytest.mark.toy

KEYS = jax.random.split(jax.random.key(3), 7)


def names(jaxpr):
    """The operations of a jaxpr and of those within it."""
    for each in jaxpr.eqns:
        yield each.primitive.name
        for inner in jaxprs_in_params(each.params):
            yield from names(inner)


def in_the_loop(function, *args):
    """The operations in the body of the longest loop that a function is traced to."""
    equations = jax.make_jaxpr(function)(*args).eqns
    (loop,) = [each for each in equations if each.primitive.name == "scan"]
    return list(names(loop.params["jaxpr"].jaxpr))


def walk(scale=1.0):
    """A step with draws of several kinds: of the key, of what is carried, of both."""

    def step(carried, key):
        x, count = carried
        first, second, third = jax.random.split(key, 3)
        noise = scale * jax.random.normal(first, x.shape)
        place = jax.random.categorical(second, x, axis=-1)
        starts = jax.vmap(lambda key: jax.random.uniform(key, (2,)))(jax.random.split(third, 3))
        fresh = jnp.concatenate([starts, jnp.zeros((3, 2))], axis=1)
        over = jnp.sum(x, axis=1, keepdims=True) > 1
        rows = place, noise, jax.random.key_data(key)
        return (jnp.where(over, fresh, x + noise), count + 1), rows

    return step


def test_the_numbers_are_those_of_a_plain_scan():
    first = jnp.zeros((3, 4)), jnp.int32(0)
    here = jax.jit(lambda keys: key_scan.scan(walk(), first, keys))(KEYS)
    plain = jax.jit(lambda keys: jax.lax.scan(walk(), first, keys))(KEYS)
    jax.tree.map(np.testing.assert_array_equal, here, plain)


def test_under_vmap_and_with_closed_over_arrays_too():
    scales, first = jnp.array([0.5, 2.0]), (jnp.ones((3, 4)), jnp.int32(0))

    def run(scan):
        def one(scale, keys):
            total = jax.lax.psum(scale, "many")
            return scan(walk(scale / total), first, keys)

        return jax.jit(jax.vmap(one, axis_name="many"))(scales, jnp.stack([KEYS, KEYS[::-1]]))

    jax.tree.map(np.testing.assert_array_equal, run(key_scan.scan), run(jax.lax.scan))


def test_steps_draw_nothing_themselves():
    first = jnp.zeros((3, 4)), jnp.int32(0)
    assert "random_bits" in in_the_loop(lambda: jax.lax.scan(walk(), first, KEYS))
    left = in_the_loop(lambda: key_scan.scan(walk(), first, KEYS))
    assert not {"random_bits", "random_split", "random_fold_in", "erf_inv"} & {*left}


def test_what_makes_much_of_little_stays_in_its_step():
    def picture(carried, key):
        place = jax.random.randint(key, (), 0, 50)
        return carried + jax.nn.one_hot(place, 50), ()

    left = in_the_loop(lambda: key_scan.scan(picture, jnp.zeros(50), KEYS))
    assert "random_bits" not in left
    assert "eq" in left
    here, plain = (scan(picture, jnp.zeros(50), KEYS) for scan in (key_scan.scan, jax.lax.scan))
    np.testing.assert_array_equal(here[0], plain[0])


def sum_of_draws(carried, key):
    return carried + jnp.sum(jax.random.uniform(key, (1000,))), ()


def waves_of_draws(carried, key):
    """Draws few numbers, and would keep 20 times as many."""
    x = jax.random.uniform(key, (1000,))
    return carried, [jnp.sin(i * x) for i in range(20)]


@pytest.mark.parametrize(
    ("step", "bytes_of_a_step", "early"),
    [(sum_of_draws, 8_100, True), (sum_of_draws, 3_900, False), (waves_of_draws, 80_000, False)],
)
def test_no_more_is_drawn_and_kept_than_fits(monkeypatch, step, bytes_of_a_step, early):
    monkeypatch.setattr(key_scan, "LARGEST", 7 * bytes_of_a_step)
    left = in_the_loop(lambda: key_scan.scan(step, jnp.zeros(()), KEYS))
    assert ("random_bits" not in left) == early


def test_loops_and_calls_of_the_host_stay_in_their_steps():
    seen = []

    def step(carried, key):
        bits = jax.random.bits(key)
        io_callback(lambda x: seen.append(int(x)), None, carried, ordered=True)
        until = jax.lax.while_loop(lambda x: x > 100, lambda x: x // 3, bits)
        return carried + 1, until

    here = jax.block_until_ready(key_scan.scan(step, jnp.int32(0), KEYS))
    jax.effects_barrier()
    assert seen == list(range(7))
    np.testing.assert_array_equal(here[1], [third(int(jax.random.bits(key))) for key in KEYS])
    assert "while" in in_the_loop(lambda: key_scan.scan(step, jnp.int32(0), KEYS))


def test_the_host_is_called_once_a_step():
    def step(carried, key):
        shape = jax.ShapeDtypeStruct((), jnp.uint32)
        return carried, jax.pure_callback(lambda x: x, shape, jax.random.bits(key))

    here, plain = (scan(step, jnp.zeros(()), KEYS) for scan in (key_scan.scan, jax.lax.scan))
    np.testing.assert_array_equal(here[1], plain[1])


def third(x):
    """x, divided by 3 until it is at most 100."""
    while x > 100:
        x //= 3
    return x


def test_one_compiled_function_called_twice_has_its_own_numbers_each_time():
    draw = jax.jit(lambda key, x: x + jax.random.uniform(key, (2,)))

    def step(carried, key):
        one, other = jax.random.split(key)
        return draw(other, draw(one, carried)), draw(one, jnp.zeros(2))

    here, plain = (scan(step, jnp.zeros(2), KEYS) for scan in (key_scan.scan, jax.lax.scan))
    jax.tree.map(np.testing.assert_array_equal, here, plain)


@pytest.mark.parametrize("step", [lambda x, key: (x + 1, x), lambda x, key: (x * 2, ())])
def test_a_step_may_draw_nothing(step):
    here, plain = (scan(step, jnp.float32(1), KEYS) for scan in (key_scan.scan, jax.lax.scan))
    jax.tree.map(np.testing.assert_array_equal, here, plain)
