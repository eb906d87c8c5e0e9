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


def environment(own: Mapping[str, str]) -> Dict[str, str]:
    """`own`: of the agent; over ssh its PATH is that of a login. HOME is where `~` leads for gpq.
    Who the user is, the system says, or `own` where the user id has no name."""
    entry = _entry()
    name = entry.pw_name if entry else own.get("USER") or own.get("LOGNAME", "")
    variables = {
        "HOME": own.get("HOME") or (entry.pw_dir if entry else "/"),
        "USER": name,
        "LOGNAME": name,
        "SHELL": (entry.pw_shell if entry else own.get("SHELL")) or "/bin/sh",
        "PATH": own.get("PATH", PATH) if "SSH_CONNECTION" in own else PATH,
    }
    return {key: value for key, value in variables.items() if value}


def with_defaults(env: Mapping[str, str], values: Mapping[str, str]) -> Dict[str, str]:
    """`env` with those of `values` that its user has not set. They are right for this server and
    this many GPUs alone: what is submitted from within the job leaves them behind
    (wire.ENV_DEFAULTS)."""
    new = {name: value for name, value in values.items() if name not in env}
    defaults = {**json.loads(env.get(wire.ENV_DEFAULTS, "{}")), **new}
    return {
        **env,
        **new,
        **({wire.ENV_DEFAULTS: json.dumps(defaults, sort_keys=True)} if defaults else {}),
    }


def _entry() -> Optional[pwd.struct_passwd]:
    try:
        return pwd.getpwuid(os.geteuid())
    except KeyError:
        return None
