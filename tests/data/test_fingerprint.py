"""What differs between the data of two runs."""

from jaxpt.data import fingerprint
from jaxpt.data.tasks import base


def test_runs_from_before_a_field_came_have_what_they_did():
    """Both ways: a run that has the field at that value does not differ from one without it."""
    for name, value in fingerprint.LATER.items():
        default = base.Task.model_fields[name].default
        assert default == value or not (default or value), name
        with_it, without = {"task": {"kind": "tagging", name: value}}, {"task": {"kind": "tagging"}}
        assert not fingerprint.changes(without, with_it) and not fingerprint.changes(with_it, without)
    plain = {"task": {"kind": "x"}}
    assert fingerprint.changes(plain, {"task": {"kind": "x", "comments": True}}) == {"task.comments": (False, True)}
    options = {"task": {"metric_options": {"bleu": {"tokenize": "zh"}}}}
    assert fingerprint.changes(plain, {"task": {"kind": "x"} | options["task"]})


def test_what_differs_is_named_by_its_key():
    was, now = {"source": {"a": 1, "b": [1, 2]}}, {"source": {"a": 1, "b": [1, 3]}, "seed": 4}
    assert fingerprint.changes(was, now) == {"source.b.1": (2, 3), "seed": (None, 4)}
