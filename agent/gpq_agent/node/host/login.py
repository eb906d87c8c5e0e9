"""What a job has of its server: the variables of a login without a login shell, as `ssh SERVER env`
has them.

The same whoever started the agent, and from which shell. All else comes from the job's submission
and from gpq.
"""

import json
import os
import pwd
from typing import Dict, Mapping, Optional

from gpq_agent import wire

# as sshd's, on the daemon's own machine; a submission brings that of its shell
PATH = "/usr/local/bin:/usr/bin:/bin"


def environment(agent_env: Mapping[str, str]) -> Dict[str, str]:
    """`agent_env`: of the agent; over ssh its PATH is that of a login. HOME is where `~` leads for
    gpq. Who the user is, the system says, or `agent_env` where the user id has no name."""
    entry = _entry()
    name = entry.pw_name if entry else agent_env.get("USER") or agent_env.get("LOGNAME", "")
    variables = {
        "HOME": agent_env.get("HOME") or (entry.pw_dir if entry else "/"),
        "USER": name,
        "LOGNAME": name,
        "SHELL": (entry.pw_shell if entry else agent_env.get("SHELL")) or "/bin/sh",
        "PATH": agent_env.get("PATH", PATH) if "SSH_CONNECTION" in agent_env else PATH,
    }
    return {key: value for key, value in variables.items() if value}


def with_defaults(env: Mapping[str, str], values: Mapping[str, str]) -> Dict[str, str]:
    """`env` with those of `values` that its user has not set. They are right for this server and
    this many GPUs alone: what is submitted from within the job leaves them behind
    (wire.ENV_DEFAULTS)."""
    additions = {name: value for name, value in values.items() if name not in env}
    defaults = {**json.loads(env.get(wire.ENV_DEFAULTS, "{}")), **additions}
    return {
        **env,
        **additions,
        **({wire.ENV_DEFAULTS: json.dumps(defaults, sort_keys=True)} if defaults else {}),
    }


def _entry() -> Optional[pwd.struct_passwd]:
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        return None
