# Replaces the plugin's ONNXInference.cs, which needs Godot's .NET version: a program at --inference_port runs the policy.
extends Object

var stream := StreamPeerTCP.new()


func Initialize(path: String, batch_size: int) -> int:
	for text in OS.get_cmdline_args():
		if text.begins_with("--inference_port="):
			stream.connect_to_host("127.0.0.1", text.get_slice("=", 1).to_int())
	while stream.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		stream.poll()
		OS.delay_usec(100)
	return exchange({"path": path, "batch_size": batch_size})["size"]


func RunInference(obs: Dictionary, state_ins: int) -> Dictionary:
	return exchange({"obs": obs, "state_ins": state_ins})


func exchange(message: Dictionary) -> Dictionary:
	stream.put_utf8_string(JSON.stringify(message, "", true, true))
	return JSON.parse_string(stream.get_utf8_string())


func FreeDisposables() -> void:
	stream.disconnect_from_host()
