"""The schema of a configuration: the keys that all runs share, each with its type, range and meaning.

Algorithms, torsos and families of environments add their own keys to `AgentConfig`, `NetworkConfig` and
`EnvironmentConfig`, beside their code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]
Devices = Literal["auto"] | PositiveInt


class Section(BaseModel):
    """Base of every section: rejects unknown keys and non-finite numbers; immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


class RunConfig(Section):
    """The run as a whole."""

    preset: str = Field("", description="name of the preset the run started from")
    steps: PositiveInt = Field(1_000_000, description="environment steps to train on")
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(1, description="seed of networks, actions and environments")
    deterministic: bool = Field(
        False, description="seed train runs single-threaded in lock-step: the same seed reproduces the same metrics"
    )


class EnvironmentConfig(Section):
    """The environment. Every family of environments adds keys of its own to these (`envs.base.Family`)."""

    family: Name = Field("gymnasium", description="family of environments, or module:Class of your own")
    id: str = Field("", description="name of the environment in its family")
    restarts: Annotated[int, Field(ge=0)] = Field(
        5,
        description="failed environments an actor rebuilds before it gives up; reset after an hour without failure",
    )
    step_timeout: NonNegative = Field(
        300.0, description="seconds after which a step that has not returned counts as hung; 0: never"
    )

    def conflicts(self, config: Sections) -> Iterator[str]:
        """Contradictions between values that are each in range, one sentence each that names the full keys."""
        yield from ()


class NetworkConfig(Section):
    """The network. A torso may add keys of its own to these, such as the channels of impala_deep."""

    torso: Name = Field("mlp", description="network torso, or module:Class of your own")
    hidden: tuple[PositiveInt, ...] = Field(
        (64, 64), description="widths of the hidden layers of mlp, also used for vectors beside images"
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="activation of these hidden layers")
    lstm: Annotated[int, Field(ge=0)] = Field(0, description="LSTM units after the torso; 0: no LSTM")
    frame_stack: Annotated[int, Field(ge=1, le=16)] = Field(
        1, description="most recent frames stacked as the network's input"
    )
    previous_action_reward: bool = Field(False, description="feed the previous action and reward to the network")
    reward_input_clip: NonNegative = Field(1.0, description="rewards fed to the network are clipped to ± this; 0: off")
    normalize_observations: bool = Field(
        False,
        description="normalize observations by their running mean and variance (images: one variance for all pixels), "
        "clipped to ±10; with images V-trace and PPO learn only after 10,000 records",
    )

    @property
    def smallest_image(self) -> int | None:
        """Smallest height and width of an image that the torso takes, pixels; None: it takes flat vectors only."""
        return None

    def conflicts(self, config: Sections) -> Iterator[str]:
        """Contradictions between values that are each in range, one sentence each that names the full keys."""
        yield from ()


class AgentConfig(Section):
    """The algorithm. Every algorithm adds keys of its own to these.

    Attributes:
        source: where training batches come from: "queue" (each unroll once, in order) or "replay".
        evaluates: whether evaluation streams explore less than training streams.
        sample_length: transitions of a column drawn from a replay; None: whole unrolls.
    """

    source: ClassVar[Literal["queue", "replay"]] = "queue"
    evaluates: ClassVar[bool] = False
    sample_length: ClassVar[int | None] = None

    algorithm: Name = Field("vtrace", description="learning algorithm, or module:Class of your own")
    network: NetworkConfig = Field(default_factory=NetworkConfig, description="the network")
    discount: Fraction = Field(0.99, description="discount per step, γ")
    reward_scale: Positive = Field(1.0, description="rewards are multiplied by this in the loss, before clipping")
    reward_clip: NonNegative = Field(0.0, description="rewards are clipped to ± this in the loss; 0: off")

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )

    def conflicts(self, config: Sections) -> Iterator[str]:
        """Contradictions between values that are each in range, one sentence each that names the full keys."""
        yield from ()


class TrainingConfig(Section):
    """Unrolls, batches, optimizer and checkpoints."""

    unroll_length: PositiveInt = Field(20, description="transitions of an unroll, T")
    burn_in: Annotated[int, Field(ge=0)] = Field(
        0, description="records before an unroll that only warm up the recurrent state, K"
    )
    batch_size: PositiveInt = Field(32, description="unrolls, or shorter columns, of a training batch, B")
    epochs: PositiveInt = Field(1, description="passes over each batch; only without a replay")
    minibatches: PositiveInt = Field(
        1,
        description="parts into which each pass splits a batch, one update per part: single transitions in random "
        "order for PPO and for V-trace with agent.fixed_targets, if the network has no LSTM; otherwise whole unrolls; "
        "only without a replay",
    )
    synchronous: bool = Field(
        False, description="environments wait while training uses what they collected; only without a replay"
    )
    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="optimizer")
    learning_rate: Positive = Field(1e-3, description="initial learning rate")
    learning_rate_end: NonNegative = Field(0.0, description="learning rate at run.steps, reached linearly")
    learning_rate_schedule: Literal["constant", "linear"] = Field("linear", description="learning-rate schedule")
    adam_beta1: Decay = Field(0.9, description="adam: β1")
    adam_beta2: Decay = Field(0.999, description="adam: β2")
    epsilon: Positive = Field(1e-7, description="optimizer ε")
    rmsprop_decay: Decay = Field(0.99, description="rmsprop: decay")
    rmsprop_momentum: Decay = Field(0.0, description="rmsprop: momentum")
    clip_norm: NonNegative = Field(0.0, description="global gradient norm is clipped to this; 0: off")
    queue_batches: PositiveInt = Field(
        1, description="capacity of the queue of finished unrolls, in training batches, or with a replay in buffers"
    )
    checkpoint_seconds: Positive = Field(600.0, description="seconds between checkpoints")
    keep_checkpoints: PositiveInt = Field(3, description="number of most recent checkpoints to keep")
    keep_every_hours: NonNegative = Field(6.0, description="also keep one checkpoint per this many hours; 0: none")

    @property
    def columns_per_update(self) -> int:
        """Unrolls that one update trains on, over all devices and hosts: losses are divided by T times this."""
        return self.batch_size // self.minibatches

    @property
    def parts_of_update(self) -> int:
        """Parts of an update's unrolls that a CPU trains on at the same time, each with its share of the cores.

        Two where environments wait for training, which then has all cores: two operations at a time waste less of them
        than one that is split over all. Otherwise one, because inference has the other half of the cores.
        """
        return 2 if self.synchronous and self.columns_per_update % 2 == 0 else 1

    @property
    def updates_per_batch(self) -> int:
        """Updates on each batch."""
        return self.epochs * self.minibatches


class ReplayConfig(Section):
    """The replay of unrolls, for algorithms that use one."""

    capacity: PositiveInt = Field(100_000, description="maximum number of unrolls; the oldest are removed first")
    capacity_gb: NonNegative = Field(0.0, description="maximum size in gigabytes (10⁹ bytes); 0: no limit")
    min_size: PositiveInt = Field(5_000, description="unrolls required before training starts")
    ratio: Positive = Field(0.75, description="average number of times each transition is trained on")
    window: NonNegative = Field(
        0.0, description="unrolls by which training may deviate from the ratio in either direction; 0: two batches"
    )
    sampling: Literal["prioritized", "uniform"] = Field(
        "prioritized", description="draw unrolls by their priorities, or each transition with the same probability"
    )
    priority_exponent: NonNegative = Field(0.9, description="prioritized: probability ∝ priority to this power")
    importance_exponent: Fraction = Field(
        0.6, description="prioritized: importance weight ∝ probability to the negative of this power"
    )
    storage: Literal["auto", "plain", "compressed"] = Field(
        "auto", description="unrolls in memory; auto: plain where a record is small (at most 4 KiB)"
    )
    save: bool = Field(False, description="save the replay in checkpoints; --resume restores it")


class InferenceConfig(Section):
    """Batching of inference."""

    batch_size: Annotated[int, Field(ge=0)] = Field(0, description="environments in a full batch; 0: half of all")
    deadline_ms: NonNegative = Field(4.0, description="maximum wait for a full batch, milliseconds")
    max_envs: PositiveInt = Field(4096, description="maximum number of environments the learner accepts")
    pad_to: tuple[PositiveInt, ...] = Field(
        (), description="batch sizes to pad to; empty: no padding on CPU, four sizes on GPU"
    )


class ActorsConfig(Section):
    """Actors that `seed train` starts, and the defaults of every actor."""

    count: PositiveInt = Field(1, description="number of actor processes of seed train")
    envs: PositiveInt = Field(16, description="environments per actor")
    streams: PositiveInt = Field(2, description="groups that an actor splits its environments into")
    evaluation_envs: Annotated[int, Field(ge=0)] = Field(
        0, description="evaluation environments in total, spread over all actors; never trained on"
    )


class NetConfig(Section):
    """Connections between actors and the learner. A transport of your own may add keys to these, such as its port."""

    host: str = Field(
        "", description="address the learner binds; empty: all interfaces, or only 127.0.0.1 with net.insecure"
    )
    grpc_port: Annotated[int, Field(ge=-1, le=65535)] = Field(8686, description="gRPC port; 0: any free port, -1: off")
    zmq_port: Annotated[int, Field(ge=-1, le=65535)] = Field(8687, description="ZeroMQ port; 0: any free port, -1: off")
    transport: Name = Field(
        "shm", description="transport of seed train's own actors: shm, zmq, grpc, or module:Class of your own"
    )
    heartbeat_seconds: Positive = Field(2.0, description="seconds between an actor's heartbeats")
    compression: Literal["auto", "off", "on"] = Field(
        "auto",
        description="compression of observations; auto: where it is cheap and the learner is on another machine",
    )
    timeout_seconds: Positive = Field(20.0, description="seconds without a message after which the peer counts as dead")
    reconnect_timeout: NonNegative = Field(
        300.0, description="seconds for which an actor tries to reconnect to a lost learner"
    )
    insecure: bool = Field(False, description="no token and no encryption: anyone who can reach a port can connect")
    token_file: str = Field("", description="file that holds the token; empty: SEED_TOKEN, else this user's token file")
    tls_cert: str = Field("", description="gRPC: PEM certificate of the learner; empty: generated from the token")
    tls_key: str = Field("", description="gRPC: PEM private key of net.tls_cert")
    tls_ca: str = Field(
        "", description="gRPC: PEM CA certificates that must sign actors' certificates; empty: not required"
    )
    metrics_port: Annotated[int, Field(ge=-1, le=65535)] = Field(
        -1, description="HTTP port of Prometheus metrics and health; 0: any free port, -1: off"
    )
    metrics_host: Name = Field(
        "127.0.0.1", description="address of the metrics port; 0.0.0.0: all interfaces, readable by anyone"
    )

    def conflicts(self, config: Sections) -> Iterator[str]:
        """Contradictions between values that are each in range, one sentence each that names the full keys."""
        yield from ()


class TopologyConfig(Section):
    """Devices for inference and training, and learner hosts."""

    platform: Literal["auto", "cpu", "gpu", "tpu"] = Field(
        "auto", description="devices to use; auto: TPU if available, else GPUs, else the CPU"
    )
    inference_devices: Devices = Field(
        "auto", description='inference devices per host, the last ones: a number, or "auto" for one in four'
    )
    training_devices: Devices = Field(
        "auto", description='training devices per host, the first ones: a number, or "auto" for the others'
    )
    virtual_devices: Annotated[int, Field(ge=0, le=64)] = Field(
        0, description="cpu: virtual devices to split the CPU into, to test a topology without accelerators; 0: one"
    )
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = Field(
        "float32", description="precision of network computations; heads, losses, targets and weights stay in float32"
    )
    xla: Literal["off", "training", "all"] = Field(
        "off", description="what XLA compiles: nothing, the loss and its gradients, or inference too"
    )
    publish_every: PositiveInt = Field(1, description="updates between copies of the weights to inference")
    hosts: tuple[Name, ...] = Field(
        (), description="learner hosts that train one model, each host:port, the chief first; empty: this host alone"
    )
    host_index: Annotated[int, Field(ge=0)] = Field(0, description="index of this process in topology.hosts")
    host_timeout: Positive = Field(
        600.0, description="seconds to wait for a host that is missing or has no data before all hosts stop"
    )
    trust_network: bool = Field(
        False,
        description="several hosts: allow TensorFlow's unprotected connections between them",
    )


class TelemetryConfig(Section):
    """Metrics output."""

    interval_seconds: Positive = Field(2.0, description="seconds between lines of metrics.jsonl")
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = Field(
        ("tensorboard",),
        description="additional loggers of configuration and metrics; wandb and mlflow are extras to install",
    )


class Sections(Section):
    """The sections of a configuration, each value valid by itself; `schema.Config` checks them for conflicts."""

    run: RunConfig = RunConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    agent: AgentConfig = AgentConfig()
    training: TrainingConfig = TrainingConfig()
    replay: ReplayConfig = ReplayConfig()
    inference: InferenceConfig = InferenceConfig()
    actors: ActorsConfig = ActorsConfig()
    net: NetConfig = NetConfig()
    topology: TopologyConfig = TopologyConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
