"""Names of settings in other PPO libraries, and the settings of ours that they are."""

RATE = "and ppo.learning_rate_schedule decays it to 0 by default"
TWICE = "with twice the value, because the value loss has a factor 1/2 here"
HALF = "with the same value if the value loss has a factor 1/2 there, else with twice the value"

SB3: dict[str, str | tuple[str, str]] = {
    "policy": ("", "network.* describes it; encoders of images are found by themselves"),
    "env": ("env.name", "as in gymnax/CartPole-v1"),
    "n_envs": "env.num_envs",
    "n_timesteps": "total_timesteps",
    "total_timesteps": "total_timesteps",
    "learning_rate": ("ppo.learning_rate", RATE),
    "n_steps": "ppo.rollout_length",
    "batch_size": (
        "",
        "a minibatch has env.num_envs x ppo.rollout_length / ppo.num_minibatches rows",
    ),
    "n_epochs": "ppo.num_epochs",
    "gamma": "ppo.gamma",
    "gae_lambda": "ppo.gae_lambda",
    "clip_range": "ppo.clip_eps",
    "clip_range_vf": (
        "ppo.vf_clip_eps",
        "with ppo.value_clipping, which takes the larger of both errors; SB3 takes the clipped one",
    ),
    "normalize_advantage": "ppo.advantage_normalization = minibatch",
    "ent_coef": "ppo.ent_coef",
    "vf_coef": ("ppo.vf_coef", TWICE),
    "max_grad_norm": "ppo.max_grad_norm",
    "target_kl": ("ppo.target_kl", "1.5 times as large, with ppo.early_stop_kl"),
    "use_sde": ("", "exploration is independent noise; network.std = dependent lets it vary"),
    "tensorboard_log": ("logging.tensorboard", "which is on; events are in the run's folder"),
    "verbose": ("", "progress is always printed"),
    "device": ("", "JAX uses the accelerator that it finds; JAX_PLATFORMS=cpu leaves it out"),
    "policy_kwargs": ("", "network.hidden, network.activation and others are settings themselves"),
    "net_arch": ("network.hidden", "and network.critic_hidden where the critic's differs"),
    "activation_fn": "network.activation",
    "ortho_init": "network.initializer = orthogonal",
    "log_std_init": ("network.init_std", "the standard deviation itself, without logarithm"),
    "squash_output": "network.distribution = tanh_gaussian",
    "lstm_hidden_size": ("network.rnn_size", "with network.rnn = lstm"),
    "norm_obs": "ppo.normalize_obs",
    "norm_reward": "ppo.normalize_reward",
    "env_kwargs": "env.options",
    "eval_freq": ("eval.interval", "in steps of all environments together"),
    "n_eval_episodes": "eval.num_episodes",
    "save_freq": ("checkpoint.interval", "in steps of all environments together"),
    "reset_num_timesteps": ("", "the same command continues a run, and --clobber starts afresh"),
    "algo": ("", "PPO is all there is"),
}

CLEANRL: dict[str, str | tuple[str, str]] = {
    "exp_name": "run_dir",
    "env_id": ("env.name", "as in gymnax/CartPole-v1"),
    "gym_id": ("env.name", "as in gymnax/CartPole-v1"),
    "total_timesteps": "total_timesteps",
    "learning_rate": ("ppo.learning_rate", RATE),
    "num_envs": "env.num_envs",
    "num_steps": "ppo.rollout_length",
    "anneal_lr": "ppo.learning_rate_schedule = linear",
    "gamma": "ppo.gamma",
    "gae_lambda": "ppo.gae_lambda",
    "num_minibatches": "ppo.num_minibatches",
    "update_epochs": "ppo.num_epochs",
    "norm_adv": "ppo.advantage_normalization = minibatch",
    "clip_coef": "ppo.clip_eps",
    "clip_vloss": ("ppo.value_clipping", "with ppo.vf_clip_eps = clip_coef"),
    "ent_coef": "ppo.ent_coef",
    "vf_coef": "ppo.vf_coef",
    "max_grad_norm": "ppo.max_grad_norm",
    "target_kl": ("ppo.target_kl", "with ppo.early_stop_kl"),
    "minibatch_size": (
        "",
        "a minibatch has env.num_envs x ppo.rollout_length / ppo.num_minibatches rows",
    ),
    "num_iterations": (
        "total_timesteps",
        "in steps: iterations x env.num_envs x ppo.rollout_length",
    ),
    "track": ("logging.wandb_project", "with a project's name"),
    "wandb_project_name": "logging.wandb_project",
    "wandb_entity": ("", "WANDB_ENTITY in the environment names it"),
    "capture_video": ("", "evaluate draws a film of a run: --render film.mp4"),
    "save_model": ("", "every run saves: checkpoint.interval, and the best agent"),
    "torch_deterministic": ("", "a seed gives the same numbers again on the same kind of device"),
    "cuda": ("", "JAX uses the accelerator that it finds; JAX_PLATFORMS=cpu leaves it out"),
}

RSL_RL: dict[str, str | tuple[str, str]] = {
    "num_steps_per_env": "ppo.rollout_length",
    "max_iterations": (
        "total_timesteps",
        "in steps: iterations x env.num_envs x ppo.rollout_length",
    ),
    "save_interval": (
        "checkpoint.interval",
        "in steps: iterations x env.num_envs x ppo.rollout_length",
    ),
    "num_learning_epochs": "ppo.num_epochs",
    "num_mini_batches": "ppo.num_minibatches",
    "learning_rate": ("ppo.learning_rate", RATE),
    "schedule": ("ppo.learning_rate_schedule", "with adaptive, or constant for fixed"),
    "desired_kl": ("ppo.target_kl", "with ppo.learning_rate_schedule = adaptive"),
    "optimizer": ("ppo.optimizer", "with ppo.adam_eps = 1e-8 for adam"),
    "clip_param": "ppo.clip_eps",
    "gamma": "ppo.gamma",
    "lam": "ppo.gae_lambda",
    "value_loss_coef": ("ppo.vf_coef", TWICE),
    "use_clipped_value_loss": ("ppo.value_clipping", "with ppo.vf_clip_eps = clip_param"),
    "entropy_coef": "ppo.ent_coef",
    "max_grad_norm": (
        "ppo.max_grad_norm",
        "of all parameters together; rsl_rl 5 clips actor and critic separately",
    ),
    "normalize_advantage_per_mini_batch": (
        "ppo.advantage_normalization",
        "minibatch for true, batch for false",
    ),
    "hidden_dims": "network.hidden",
    "actor_hidden_dims": "network.hidden",
    "critic_hidden_dims": "network.critic_hidden",
    "init_noise_std": "network.init_std",
    "rnn_type": "network.rnn",
    "rnn_hidden_dim": "network.rnn_size",
    "empirical_normalization": "ppo.normalize_obs",
    "obs_normalization": "ppo.normalize_obs",
    "rnd_cfg": "intrinsic.kind = rnd",
    "symmetry_cfg": ("ppo.symmetry", "with env.mirror_obs and env.mirror_action"),
    "experiment_name": "run_dir",
    "resume": ("", "the same command continues a run"),
}

BRAX: dict[str, str | tuple[str, str]] = {
    "environment": ("env.name", "as in brax/hopper"),
    "env_name": ("env.name", "as in brax/hopper"),
    "num_timesteps": (
        "total_timesteps",
        "which counts actions: divide by action_repeat",
    ),
    "num_envs": "env.num_envs",
    "episode_length": (
        "env.max_episode_steps",
        "which counts actions: divide by action_repeat",
    ),
    "action_repeat": (
        "",
        "of playground/ tasks env.options.action_repeat; total_timesteps counts actions",
    ),
    "randomization_fn": (
        "env.randomize",
        "which names parameters and ranges; or Playground's env.options.domain_randomization",
    ),
    "learning_rate": ("ppo.learning_rate", RATE),
    "learning_rate_schedule": (
        "ppo.learning_rate_schedule",
        "with adaptive for ADAPTIVE_KL, else constant",
    ),
    "desired_kl": ("ppo.target_kl", "with ppo.learning_rate_schedule = adaptive"),
    "entropy_cost": "ppo.ent_coef",
    "discounting": "ppo.gamma",
    "unroll_length": "ppo.rollout_length",
    "batch_size": (
        "",
        "env.num_envs is batch_size x num_minibatches, and ppo.shuffle = trajectories keeps "
        "unrolls whole",
    ),
    "num_minibatches": "ppo.num_minibatches",
    "num_updates_per_batch": "ppo.num_epochs",
    "normalize_observations": "ppo.normalize_obs",
    "reward_scaling": (
        "ppo.reward_scale",
        "or ppo.normalize_reward, which divides them by the return's deviation",
    ),
    "clipping_epsilon": "ppo.clip_eps",
    "clipping_epsilon_value": ("ppo.vf_clip_eps", "with ppo.value_clipping"),
    "gae_lambda": (
        "ppo.gae_lambda",
        "which Brax uses for targets alone; its advantage: reward + discount x next target - value",
    ),
    "max_grad_norm": "ppo.max_grad_norm",
    "normalize_advantage": "ppo.advantage_normalization = minibatch",
    "vf_loss_coefficient": "ppo.vf_coef",
    "policy_hidden_layer_sizes": "network.hidden",
    "value_hidden_layer_sizes": "network.critic_hidden",
    "policy_obs_key": "network.actor_keys",
    "value_obs_key": "network.critic_keys",
    "num_evals": ("eval.interval", "in steps: total_timesteps / (num_evals - 1)"),
    "num_eval_envs": ("eval.num_episodes", "one whole episode of each environment"),
    "deterministic_eval": ("eval.stochastic", "its opposite"),
    "num_resets_per_eval": ("", "every episode begins with a start of its own; see env.reset"),
    "bootstrap_on_timeout": ("", "time limits always bootstrap from the true last observation"),
    "max_devices_per_host": "devices",
    "restore_checkpoint_path": ("", "the same command continues a run"),
    "save_checkpoint_path": "run_dir",
}

COMMON: dict[str, str | tuple[str, str]] = {
    "env": ("env.name", "as in gymnax/CartPole-v1"),
    "task": ("env.name", "as in gymnax/CartPole-v1"),
    "env_params": "env.options",
    "time_limit": "env.max_episode_steps",
    "timesteps": "total_timesteps",
    "max_timesteps": "total_timesteps",
    "total_steps": "total_timesteps",
    "num_env_steps": "total_timesteps",
    "lr": "ppo.learning_rate",
    "lr_schedule": "ppo.learning_rate_schedule",
    "horizon_length": "ppo.rollout_length",
    "mini_batch_size": (
        "",
        "a minibatch has env.num_envs x ppo.rollout_length / ppo.num_minibatches rows",
    ),
    "mini_epochs": "ppo.num_epochs",
    "epochs": "ppo.num_epochs",
    "discount": "ppo.gamma",
    "lam": "ppo.gae_lambda",
    "lambda": "ppo.gae_lambda",
    "clip": "ppo.clip_eps",
    "clip_param": "ppo.clip_eps",
    "clip_epsilon": "ppo.clip_eps",
    "e_clip": "ppo.clip_eps",
    "entropy_coef": "ppo.ent_coef",
    "entropy_coeff": "ppo.ent_coef",
    "value_loss_coef": ("ppo.vf_coef", HALF),
    "critic_coef": ("ppo.vf_coef", HALF),
    "clip_value": ("ppo.value_clipping", "with ppo.vf_clip_eps = e_clip"),
    "normalize_observation": "ppo.normalize_obs",
    "normalize_rewards": "ppo.normalize_reward",
    "hidden_size": "network.hidden",
    "hidden_sizes": "network.hidden",
    "hidden_layer_sizes": "network.hidden",
    "recurrent": "network.rnn = gru",
    "use_lstm": "network.rnn = lstm",
    "wandb": ("logging.wandb_project", "with a project's name"),
    "use_wandb": ("logging.wandb_project", "with a project's name"),
    "output_dir": "run_dir",
    "log_dir": "run_dir",
    "resume": ("", "the same command continues a run"),
}

AFTER_TRAINING: dict[str, str | tuple[str, str]] = {
    "run_dir": "run",
    "run_path": "run",
    "log_dir": "run",
    "model": "run",
    "model_path": "run",
    "load_run": "run",
    "num_episodes": "episodes",
    "n_episodes": "episodes",
    "n_eval_episodes": "episodes",
    "film": ("render", "with a file's name"),
    "video": ("render", "with a file's name"),
    "output": "to",
    "format": ("to", "a file that ends in .onnx or .npz"),
}
"""Names of flags of evaluations and exports."""

LIBRARIES = {
    "Stable-Baselines3": SB3,
    "CleanRL": CLEANRL,
    "rsl_rl": RSL_RL,
    "Brax": BRAX,
    "others": COMMON,
    "evaluate and export": AFTER_TRAINING,
}
"""By library: its name of a setting -> ours, or (ours, a remark); ours is '' where none matches.

Ours is a dotted name, or one with a value: "ppo.learning_rate_schedule = linear".
"""


def meanings(name: str) -> dict[tuple[str, str], list[str]]:
    """(our setting, remark) of a name, and the libraries in which it means that."""
    leaf = name.replace("-", "_").lower().rpartition(".")[2]
    found: dict[tuple[str, str], list[str]] = {}
    for library, names in LIBRARIES.items():
        if leaf in names:
            ours = names[leaf]
            found.setdefault((ours, "") if isinstance(ours, str) else ours, []).append(library)
    return found
