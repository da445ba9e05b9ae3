"""Shared by all tests: eight virtual CPU devices, quick compilation and a cache of it, quiet TensorFlow."""

import os
import tempfile

# The time of these tests is that of compiling small programs: without optimizations it is a sixth (a step of a toy
# GPT-2: 7.2 → 1.2 s). With XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_DISABLE_MOST_OPTIMIZATIONS=0 in the
# environment programs are compiled as users' are.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The runs that tests start as processes of their own share the cache through the environment.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "jaxpt-test-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
