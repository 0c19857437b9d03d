"""Without the extra ``serve`` the tests of the HTTP service are left out."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("fastapi") else ["test_service_*.py"]
