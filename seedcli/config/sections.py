"""The schema of a configuration: every value a preset may hold, with its type, range and meaning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]
Devices = Literal["auto"] | PositiveInt


class Section(BaseModel):
    """Base of every section: unknown keys are refused, values are immutable, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


class RunConfig(Section):
    """What the run is."""

    preset: str = Field("", description="name of the preset the run started from")
    steps: PositiveInt = Field(1_000_000, description="environment steps to train on")
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = Field(1, description="seed of networks, actions, environments")
    deterministic: bool = Field(
        False, description="seed train in one thread and lock-step: a seed gives the same metrics again"
    )


class EnvironmentConfig(Section):
    """What is played. Fields that only one family has are named so."""

    family: Literal["gymnasium", "atari", "football", "dmlab"] = Field(
        "gymnasium", description="family of environments"
    )
    id: Name = Field(
        "CartPole-v1", description="Gymnasium id, Atari game in snake_case, football scenario or DeepMind Lab level"
    )
    restarts: Annotated[int, Field(ge=0)] = Field(
        5,
        description="times an actor builds environments anew that failed, before it gives up; an hour of peace resets",
    )
    step_timeout: NonNegative = Field(
        300.0, description="seconds after which a step that has not returned counts as hanging; 0: never"
    )
    max_episode_steps: Annotated[int, Field(ge=0)] = Field(
        0, description="gymnasium: steps after which an episode is truncated; 0: as registered"
    )
    kwargs: dict[str, Any] = Field(
        default_factory=dict, description="gymnasium, dmlab: keyword arguments of make(), or further settings of Lab"
    )
    observation_keys: tuple[Name, ...] = Field(
        (),
        description='gymnasium: keys of a Dict observation that are used; "-key" leaves one out; empty: all but text',
    )
    frame_skip: PositiveInt = Field(4, description="atari, dmlab: frames an action is repeated")
    repeat_action_probability: Fraction = Field(0.0, description="atari: sticky actions")
    noop_max: Annotated[int, Field(ge=0)] = Field(30, description="atari: up to this many no-ops at reset")
    full_action_set: bool = Field(True, description="atari: 18 actions instead of the game's own")
    max_frames: PositiveInt = Field(108_000, description="atari: frames after which an episode is truncated")
    episodic_life: bool = Field(False, description="atari: a lost life ends the episode")
    fire_reset: bool = Field(False, description="atari: press FIRE at reset")
    height: PositiveInt = Field(84, description="atari, dmlab: observation height, pixels")
    width: PositiveInt = Field(84, description="atari, dmlab: observation width, pixels")
    rewards: Literal["scoring", "scoring,checkpoints"] = Field(
        "scoring", description="football: goals alone, or 0.1 for each of ten zones reached with the ball as well"
    )
    engine: Literal["envpool", "gfootball"] = Field("envpool", description="football: package that carries the engine")
    instructions: Literal["off", "hashed"] = Field("off", description="dmlab: the level's instruction text, as numbers")
    level_cache: str = Field("", description="dmlab: folder where compiled levels are kept; empty: none")
    renderer: Literal["software", "hardware"] = Field("software", description="dmlab: what draws the frames")


class AgentConfig(Section):
    """What is learned."""

    algorithm: Literal["vtrace", "r2d2"] = Field("vtrace", description="learning algorithm")
    network: Literal["mlp", "impala_shallow", "nature", "impala_deep"] = Field("mlp", description="network torso")
    hidden: tuple[PositiveInt, ...] = Field(
        (64, 64), description="widths of the hidden layers of mlp, and of vectors beside images"
    )
    channels: tuple[PositiveInt, ...] = Field((16, 32, 32), description="impala_deep: channels of each stage")
    lstm: Annotated[int, Field(ge=0)] = Field(0, description="LSTM units after the torso; 0: none")
    frame_stack: Annotated[int, Field(ge=1, le=16)] = Field(1, description="newest frames the network sees at once")
    previous_action_reward: bool = Field(False, description="previous action and reward are network inputs")
    reward_input_clip: NonNegative = Field(1.0, description="rewards as inputs are clipped to ± this; 0: off")
    discount: Fraction = Field(0.99, description="discount per step, γ")
    reward_scale: Positive = Field(1.0, description="rewards are multiplied by this in the loss, before any clipping")
    reward_clip: NonNegative = Field(0.0, description="rewards are clipped to ± this in the loss; 0: off")
    normalize_observations: bool = Field(
        False, description="observations are scaled by running mean and variance (images: one variance), clipped to ±10"
    )
    normalize_values: bool = Field(
        False, description="V-trace: values are learned in units of their targets, advantages in their own (PopArt)"
    )
    separate_value: bool = Field(False, description="V-trace: policy and value share no layers")
    activation: Literal["tanh", "relu"] = Field("tanh", description="of the hidden layers of mlp")
    bound_cost: NonNegative = Field(
        0.0, description="V-trace, Box actions: weight of the penalty on means out of bounds"
    )
    initial_std: Positive = Field(1.0, description="V-trace, Box actions: the policy's standard deviation at the start")
    lambda_: Fraction = Field(1.0, alias="lambda", description="V-trace λ")
    rho_clip: Positive = Field(1.0, description="V-trace ρ̄, clips importance weights of the TD errors")
    c_clip: Positive = Field(1.0, description="V-trace c̄, clips importance weights of the traces")
    policy_clip: NonNegative = Field(
        0.0, description="V-trace: no policy gradient where π/μ has left 1 ± this in its direction; 0: off"
    )
    baseline_cost: NonNegative = Field(0.5, description="V-trace: weight of the value loss")
    entropy_cost: NonNegative = Field(0.01, description="V-trace: weight of the entropy bonus")
    dueling_hidden: Annotated[int, Field(ge=0)] = Field(
        512, description="r2d2: units of the hidden layer of each dueling head; 0: no hidden layer"
    )
    n_step: PositiveInt = Field(5, description="r2d2: steps of a target, n")
    value_rescaling: bool = Field(True, description="r2d2: Q values live in the space of h(x)")
    value_rescaling_epsilon: Positive = Field(1e-3, description="r2d2: ε of h(x)")
    target_period: PositiveInt = Field(2500, description="r2d2: updates between copies to the target network")
    priority_max_weight: Fraction = Field(0.9, description="r2d2: η, weight of the largest |TD| in a priority")
    epsilon_base: Annotated[float, Field(gt=0, le=1)] = Field(
        0.4, description="r2d2: environment i of N explores with base^(1 + exponent·i/(N-1))"
    )
    epsilon_exponent: NonNegative = Field(7.0, description="r2d2: the exponent of that")
    evaluation_epsilon: Fraction = Field(1e-3, description="r2d2: ε of environments that only evaluate")

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True, serialize_by_alias=True
    )


class TrainingConfig(Section):
    """How it is learned."""

    unroll_length: PositiveInt = Field(20, description="transitions of an unroll, T")
    burn_in: Annotated[int, Field(ge=0)] = Field(
        0, description="records in front of an unroll that only bring the recurrent state up to date, K"
    )
    batch_size: PositiveInt = Field(32, description="unrolls of a training batch, B")
    reuse: PositiveInt = Field(1, description="updates made on each batch; without a replay")
    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="optimizer")
    learning_rate: Positive = Field(1e-3, description="learning rate at the start")
    learning_rate_end: NonNegative = Field(0.0, description="learning rate at run.steps, reached linearly")
    learning_rate_schedule: Literal["constant", "linear"] = Field("linear", description="learning-rate schedule")
    adam_beta1: Decay = Field(0.9, description="adam: β1")
    adam_beta2: Decay = Field(0.999, description="adam: β2")
    epsilon: Positive = Field(1e-7, description="optimizer ε")
    rmsprop_decay: Decay = Field(0.99, description="rmsprop: decay")
    rmsprop_momentum: Decay = Field(0.0, description="rmsprop: momentum")
    clip_norm: NonNegative = Field(0.0, description="global gradient norm is clipped to this; 0: off")
    queue_batches: PositiveInt = Field(
        1, description="training batches' worth of finished unrolls that may wait; with a replay: buffers"
    )
    checkpoint_seconds: Positive = Field(600.0, description="seconds between checkpoints")
    keep_checkpoints: PositiveInt = Field(3, description="newest checkpoints kept")
    keep_every_hours: NonNegative = Field(6.0, description="one checkpoint every so many hours is kept; 0: none")


class ReplayConfig(Section):
    """Where an algorithm with a replay keeps its unrolls."""

    capacity: PositiveInt = Field(100_000, description="unrolls kept; the oldest go first")
    capacity_gb: NonNegative = Field(0.0, description="and at most so many gigabytes (10⁹ bytes); 0: no such limit")
    min_size: PositiveInt = Field(5_000, description="unrolls before training starts")
    ratio: Positive = Field(0.75, description="times an unroll is trained on, on average")
    window: NonNegative = Field(
        0.0, description="unrolls by which training may run ahead of the ratio or fall behind it; 0: two batches"
    )
    priority_exponent: NonNegative = Field(0.9, description="sampling probability ∝ priority to this power")
    importance_exponent: Fraction = Field(0.6, description="importance weight ∝ probability to minus this power")
    save: bool = Field(False, description="checkpoints keep the replay, and --resume restores it")


class InferenceConfig(Section):
    """How observations are answered."""

    batch_size: Annotated[int, Field(ge=0)] = Field(0, description="environments a batch waits for; 0: half of all")
    deadline_ms: NonNegative = Field(4.0, description="a batch never waits longer than this, milliseconds")
    max_envs: PositiveInt = Field(4096, description="environments the learner accepts")
    pad_to: tuple[PositiveInt, ...] = Field((), description="batch sizes padded to; empty: none on CPU, four on GPU")


class ActorsConfig(Section):
    """Actors that `seed train` starts, and what an actor does by default."""

    count: PositiveInt = Field(1, description="actor processes of seed train")
    envs: PositiveInt = Field(16, description="environments of an actor")
    streams: PositiveInt = Field(2, description="groups an actor's environments are split into")
    evaluation_envs: Annotated[int, Field(ge=0)] = Field(
        0, description="environments of the whole fleet that only evaluate, spread over its actors, never trained on"
    )


class NetConfig(Section):
    """How actors reach the learner."""

    host: str = Field(
        "", description="address the learner binds; empty: every interface, with net.insecure 127.0.0.1 alone"
    )
    grpc_port: Annotated[int, Field(ge=-1, le=65535)] = Field(8686, description="gRPC port; 0: any free one, -1: off")
    zmq_port: Annotated[int, Field(ge=-1, le=65535)] = Field(8687, description="ZeroMQ port; 0: any free one, -1: off")
    transport: Literal["shm", "zmq", "grpc"] = Field("shm", description="transport of seed train's own actors")
    heartbeat_seconds: Positive = Field(2.0, description="seconds between an actor's heartbeats")
    compression: Literal["auto", "off", "on"] = Field(
        "auto",
        description="observations on the wire: auto encodes them where that is cheap and the learner is elsewhere",
    )
    timeout_seconds: Positive = Field(20.0, description="silence after which the other side is taken for dead")
    reconnect_timeout: NonNegative = Field(300.0, description="seconds an actor tries to find a lost learner again")
    insecure: bool = Field(False, description="no token and no encryption: whoever reaches a port is let in")
    token_file: str = Field("", description="file of the token; empty: SEED_TOKEN, else the one of this user")
    tls_cert: str = Field("", description="gRPC: PEM certificate of the learner; empty: one made from the token")
    tls_key: str = Field("", description="gRPC: PEM private key of net.tls_cert")
    tls_ca: str = Field("", description="gRPC: PEM certificates that actors' own must come from; empty: none is asked")
    metrics_port: Annotated[int, Field(ge=-1, le=65535)] = Field(
        -1, description="HTTP port of Prometheus metrics and health; 0: any free one, -1: off"
    )
    metrics_host: Name = Field("127.0.0.1", description="address of that; 0.0.0.0: every interface, readable by all")


class TopologyConfig(Section):
    """Which devices infer, which train, on how many hosts."""

    platform: Literal["auto", "cpu", "gpu", "tpu"] = Field(
        "auto", description="devices used; auto: TPU where there is one, else GPUs, else the CPU"
    )
    inference_devices: Devices = Field(
        "auto", description='devices of a host that answer actors: a number, or "auto": one in four; the last ones'
    )
    training_devices: Devices = Field(
        "auto", description='devices of a host that train: a number, or "auto": the others; the first ones'
    )
    virtual_devices: Annotated[int, Field(ge=0, le=64)] = Field(
        0, description="cpu: devices the processor is split into, to try a topology without accelerators; 0: one"
    )
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = Field(
        "float32", description="of what networks compute; heads, losses, targets and weights stay in float32"
    )
    xla: Literal["off", "training", "all"] = Field(
        "off", description="what XLA compiles: nothing, the loss and its gradients, or inference too"
    )
    publish_every: PositiveInt = Field(1, description="updates between refreshes of the weights that inference reads")
    hosts: tuple[Name, ...] = Field(
        (), description="learner hosts that train one model, host:port each, the chief first; empty: this one alone"
    )
    host_index: Annotated[int, Field(ge=0)] = Field(0, description="which of topology.hosts this process is")
    host_timeout: Positive = Field(
        600.0, description="seconds that hosts wait for one that does not come, or is short of data, before all stop"
    )
    trust_network: bool = Field(
        False,
        description="several hosts: TensorFlow's connections between them, which nothing protects, may be used",
    )


class TelemetryConfig(Section):
    """What is written down."""

    interval_seconds: Positive = Field(2.0, description="seconds between lines of metrics.jsonl")
    tensorboard: bool = Field(True, description="write TensorBoard event files")


class Sections(Section):
    """The values of a whole configuration, each valid by itself; `schema.Config` checks that they agree."""

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
