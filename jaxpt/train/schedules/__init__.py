"""Learning rates over the steps, one module each: `schedule.kind: cosine` names `jaxpt.train.schedules.cosine`.

Steps count from 0: the first update sees `schedule(0)`, the last one `schedule(total_steps - 1)`. A schedule keeps no
state, so a run can be continued under a larger `total_steps`: constant, inverse_sqrt and t5 do not depend on it, wsd
only in its final decay.
"""
