"""Worker processes of these tests start from a server that has imported the package once."""

import multiprocessing

multiprocessing.get_context("forkserver").set_forkserver_preload(["rljax.envs.gymnasium"])
