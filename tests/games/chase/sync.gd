# Lets a trainer act for the agents of a game, in the protocol of Godot RL Agents' plugin.
#
# An agent has get_obs, get_obs_space, get_action_space, set_action and reset, and the variables
# reward, done, info and policy_name. Once every `action_repeat` ticks this sends the agents'
# observations and waits for their actions.
extends Node

var agents: Array[Node] = []
var action_repeat := argument("action_repeat", "8").to_int()
var ticks := 0
var stream := StreamPeerTCP.new()
var asked := false


# The value of --name=value on the command line.
func argument(name: String, default: String) -> String:
	for text in OS.get_cmdline_args():
		if text.begins_with("--%s=" % name):
			return text.get_slice("=", 1)
	return default


func _ready() -> void:
	var speedup := argument("speedup", "1").to_float()
	Engine.physics_ticks_per_second = int(60 * speedup)
	Engine.time_scale = speedup
	Engine.max_physics_steps_per_frame = maxi(8, ceili(speedup))
	stream.connect_to_host("127.0.0.1", argument("port", "11008").to_int())
	while stream.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		stream.poll()
		OS.delay_usec(100)
	if stream.get_status() != StreamPeerTCP.STATUS_CONNECTED:
		print("no trainer: the game goes on without one")
		set_physics_process(false)
		return
	stream.set_no_delay(true)
	receive()  # handshake
	receive()  # env_info
	send({
		"type": "env_info",
		"observation_space": agents.map(func(agent): return agent.get_obs_space()),
		"action_space": agents.map(func(agent): return agent.get_action_space()),
		"n_agents": agents.size(),
		"agent_policy_names": agents.map(func(agent): return agent.policy_name),
	})


func _physics_process(_delta: float) -> void:
	ticks += 1
	if ticks < action_repeat:
		return
	ticks = 0
	if asked:
		send(result())
		asked = false
	while not asked:
		var message: Variant = receive()
		if message == null or message["type"] == "close":
			get_tree().quit()
			set_physics_process(false)
			return
		match message["type"]:
			"reset":
				for agent in agents:
					agent.reset()
				send({"type": "reset", "obs": observations()})
			"action":
				for i in agents.size():
					agents[i].set_action(message["action"][i])
				asked = true


func observations() -> Array:
	return agents.map(func(agent): return agent.get_obs())


func result() -> Dictionary:
	var message := {
		"type": "step",
		"obs": observations(),
		"reward": agents.map(func(agent): return agent.reward),
		"done": agents.map(func(agent): return agent.done),
		"info": agents.map(func(agent): return agent.info),
	}
	for agent in agents:
		agent.reward = 0.0
		agent.done = false
		agent.info = {}
	return message


func send(message: Dictionary) -> void:
	stream.put_string(JSON.stringify(message, "", false))


# The next message; null once the trainer has gone.
func receive() -> Variant:
	while stream.get_available_bytes() == 0:
		stream.poll()
		if stream.get_status() != StreamPeerTCP.STATUS_CONNECTED:
			return null
		OS.delay_usec(10)
	return JSON.parse_string(stream.get_string())
