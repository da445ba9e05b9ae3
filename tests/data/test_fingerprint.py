"""What differs between the data of two runs."""

from jaxpt.config import TaskConfig, kinds, resolve
from jaxpt.data import fingerprint


def test_runs_from_before_a_field_came_have_what_they_did():
    """Both ways: a run that has the field at that value does not differ from one without it."""
    of_tasks = {name: value for name, value in fingerprint.LATER.items() if name != "order"}
    fields = [
        resolve(kind, "jaxpt.data.tasks", TaskConfig).model_fields for kind in kinds("jaxpt.data.tasks", TaskConfig)
    ]
    for name, value in of_tasks.items():
        defaults = [of_kind[name].default for of_kind in fields if name in of_kind]
        assert (defaults or name == "stride") and all(
            default == value or not (default or value) for default in defaults
        )
        with_it, without = {"task": {"kind": "tagging", name: value}}, {"task": {"kind": "tagging"}}
        assert not fingerprint.changes(without, with_it) and not fingerprint.changes(with_it, without)
    plain = {"task": {"kind": "x"}}
    assert fingerprint.changes(plain, {"task": {"kind": "x", "comments": True}}) == {"task.comments": (False, True)}
    options = {"task": {"metric_options": {"bleu": {"tokenize": "zh"}}}}
    assert fingerprint.changes(plain, {"task": {"kind": "x"} | options["task"]})


def test_what_differs_is_named_by_its_key():
    was, now = {"source": {"a": 1, "b": [1, 2]}}, {"source": {"a": 1, "b": [1, 3]}, "seed": 4}
    assert fingerprint.changes(was, now) == {"source.b.1": (2, 3), "seed": (None, 4)}


def test_runs_from_before_the_order_had_a_version_have_the_first():
    old, new = {"seed": 0}, {"seed": 0, "order": 2}
    assert fingerprint.changes(old, new) == {"order": (1, 2)} and not fingerprint.changes(old, {"seed": 0, "order": 1})
    assert (fingerprint.order_of(old), fingerprint.order_of(new), fingerprint.order_of(None)) == (1, 2, 2)


def test_what_determines_records_stands_for_a_checksum_that_is_not_known():
    def data(checksum, store):
        return {"order": 2, "records": {"train": checksum, "validation": "v"}, "stores": {"train": store}}

    for known, unknown in [("a", None), (None, "a"), (None, None)]:
        assert not fingerprint.changes(data(known, "x"), data(unknown, "x"))
        assert fingerprint.changes(data(known, "x"), data(unknown, "y")) == {"stores.train": ("x", "y")}
    assert not fingerprint.changes(data("a", "x"), data("a", "y"))  # other code may make the same records
    assert fingerprint.changes(data("a", "x"), data("b", "x")) == {"records.train": ("a", "b")}
