"""The errors of Onbeat.

OnbeatError                 every error a user can cause or meet
├── ConfigError             a configuration value that cannot work
├── RequestRefused          a request that was not accepted; nothing of it is kept
├── ProtocolMisuse          a call that the caller's own earlier calls rule out
├── ScenarioError           a scenario file that cannot be read
├── WorkloadError           an arrival trace that cannot be read
├── TraceError              a trace of steps that cannot be read
│   └── EmptyTrace          a trace file without one whole line
├── InvariantViolated       an invariant that does not hold, where the user wants to stop for it
├── NotAScheduler           a class that cannot be audited at all
├── NotADelayer             a prefill delayer that cannot be audited at all
├── PolicyError             a policy file or class that cannot be loaded
├── NotSymbolic             code that uses a symbolic value outside what can be run symbolically
├── Undecided               a solver that answered `unknown`, or a search that met its limit
└── NotReproduced           a refutation that does not happen in the running Python: an error of ours
"""


class OnbeatError(Exception):
    """Base of every error; the message says what was wrong, with the values, and what to do."""


class ConfigError(OnbeatError):
    """A configuration value that cannot work."""


class RequestRefused(OnbeatError):
    """A request that was not accepted; nothing of it is kept."""


class ProtocolMisuse(OnbeatError):
    """A call that the caller's own earlier calls rule out (a third step in flight, unknown outputs)."""


class ScenarioError(OnbeatError):
    """A scenario file that cannot be read."""


class WorkloadError(OnbeatError):
    """An arrival trace that cannot be read."""


class TraceError(OnbeatError):
    """A trace of steps that cannot be read; the message names file, line and key."""


class EmptyTrace(TraceError):
    """A trace file without one whole line: its writer was killed, or stopped by a full disk, before anything else."""


class InvariantViolated(OnbeatError):
    """An invariant does not hold, and whoever watches it was asked to stop for that."""


class NotAScheduler(OnbeatError):
    """A class that cannot be audited at all."""


class NotADelayer(OnbeatError):
    """A prefill delayer that cannot be audited at all."""


class PolicyError(OnbeatError):
    """A policy file or class that cannot be loaded."""


class NotSymbolic(OnbeatError):
    """Code used a symbolic value in a way that cannot be run symbolically."""


class Undecided(OnbeatError):
    """A solver answered `unknown`, or a search met its limit. Never counted as a pass."""


class NotReproduced(OnbeatError):
    """A refutation that does not happen in the running Python: an error of ours, reported as such."""
