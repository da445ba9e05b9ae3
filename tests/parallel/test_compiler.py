import jax
import jax.numpy as jnp

from jaxpt.parallel import compiler


def test_options_are_accepted_and_change_no_result():
    x = jax.random.normal(jax.random.key(0), (8, 16, 16))
    lowered = jax.jit(lambda x: (x @ x).sum(0)).lower(x)
    with_options = lowered.compile(compiler_options=compiler.options())(x)
    assert jnp.allclose(with_options, lowered.compile()(x), rtol=1e-5, atol=1e-5)


def test_an_option_that_is_not_known_is_left_out(monkeypatch):
    monkeypatch.setitem(compiler.OPTIONS, "cpu", {"xla_no_such_option": True})
    assert compiler.options.__wrapped__() == {}
