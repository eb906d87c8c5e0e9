"""What a job gets from its server: the variables of a login without a login shell, like `ssh SERVER
env`.

They do not depend on who started the agent, or from which shell. Everything else comes from the
job's submission and from gpq.
"""

import json
import os
import pwd
from typing import Dict, Mapping

from gpq_agent import wire

# like sshd's, on the daemon's own machine. A submission brings its shell's PATH
PATH = "/usr/local/bin:/usr/bin:/bin"


def environment(agent_env: Mapping[str, str]) -> Dict[str, str]:
    """`agent_env`: the agent's variables. Over ssh its PATH is that of a login. HOME is where `~`
    leads for gpq. The system knows the user's name. If the user id has none, `agent_env` does."""
    try:
        name, _, _, _, _, home, shell = pwd.getpwuid(os.geteuid())
    except KeyError:
        name = agent_env.get("USER") or agent_env.get("LOGNAME", "")
        home, shell = "/", agent_env.get("SHELL", "")
    variables = {
        "HOME": agent_env.get("HOME") or home,
        "USER": name,
        "LOGNAME": name,
        "SHELL": shell or "/bin/sh",
        "PATH": agent_env.get("PATH", PATH) if "SSH_CONNECTION" in agent_env else PATH,
    }
    return {key: value for key, value in variables.items() if value}


def with_defaults(env: Mapping[str, str], values: Mapping[str, str]) -> Dict[str, str]:
    """Add those of `values` to `env` that its user has not set. They suit only this server and this
    number of GPUs, so submissions from within the job leave them out (wire.ENV_DEFAULTS)."""
    additions = {name: value for name, value in values.items() if name not in env}
    defaults = {**json.loads(env.get(wire.ENV_DEFAULTS, "{}")), **additions}
    return {
        **env,
        **additions,
        **({wire.ENV_DEFAULTS: json.dumps(defaults, sort_keys=True)} if defaults else {}),
    }
