"""What ``lmerge demo --live`` shows: a deployment that is hurt while its output is watched."""
