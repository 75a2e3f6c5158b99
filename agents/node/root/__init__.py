"""gpuyard-root: the small part of the agent that has root, and acts when the core is dead (AGENT.md sections 1 and 5).

It talks to nobody but the engine and the kernel, and takes nothing from a network: the core writes one file in memory
(agents.node.for_root). It stops containers whose time is over, and keeps tenants' containers off the owner's network.
"""
