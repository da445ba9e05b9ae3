"""To be imported last: the half million objects of what is imported stay; looking through them again and again takes a
tenth of all time.
"""

import gc

gc.collect()
gc.freeze()
gc.set_threshold(10_000, 20, 50)
