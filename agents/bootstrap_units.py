"""The units of systemd that a bootstrap writes: the agent's, and that of the helper which goes on when it is dead."""

AGENT, HELPER = "gpuyard-agent.service", "gpuyard-root.service"
FOLDER = "/etc/systemd/system"

_AGENT_TEXT = """\
[Unit]
Description=gpuyard agent: runs leased containers on this machine's GPUs
After=network-online.target docker.service
Wants=network-online.target

[Service]
ExecStart={agent} run --state-dir {state}
Restart=always
RestartSec=2
RestartForceExitStatus=75
RuntimeDirectory=gpuyard-agent
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
MemoryMax=160M
OOMPolicy=continue
CPUQuota=15%
TasksMax=64
OOMScoreAdjust=-600
ProtectSystem=strict
ReadWritePaths={state}
NoNewPrivileges=yes
KillMode=process

[Install]
WantedBy=multi-user.target
"""
# As deploy/systemd/gpuyard-root.service has it.
_HELPER_TEXT = """\
[Unit]
Description=gpuyard: overdue containers are stopped, and tenants kept off this machine's network
After=network-online.target docker.service gpuyard-agent.service
Wants=network-online.target

[Service]
Type=notify
WatchdogSec=60
ExecStart={helper} --state-dir {state}
Environment=RUNTIME_DIRECTORY=/run/gpuyard-agent
Restart=always
RestartSec=5
TimeoutStopSec=20
MemoryMax=96M
CPUQuota=10%
TasksMax=64
OOMScoreAdjust=-800
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK
CapabilityBoundingSet=CAP_NET_ADMIN CAP_DAC_OVERRIDE CAP_KILL

[Install]
WantedBy=multi-user.target
"""


def agent(*, command: str, state: str) -> str:
    """Return the text of the agent's unit."""
    return _AGENT_TEXT.format(agent=command, state=state)


def helper(*, command: str, state: str) -> str:
    """Return the text of the helper's unit: it has root, listens to nobody, reads what the agent keeps in memory."""
    return _HELPER_TEXT.format(helper=command, state=state)
