# A ball falls a row a tick. The picture is painted by this script, and needs no display: red is the
# ball, green the paddle.
extends Node

const SIZE := 8

var policy_name := "shared_policy"
var picture := Image.create(SIZE, SIZE, false, Image.FORMAT_RGBA8)
var ball := Vector2i.ZERO
var paddle := 0
var step := 0
var reward := 0.0
var done := false
var info := {}


func _init() -> void:
	reset()


func reset() -> void:
	ball = Vector2i(randi_range(0, SIZE - 1), 0)
	paddle = randi_range(0, SIZE - 1)


func _physics_process(_delta: float) -> void:
	paddle = clampi(paddle + step, 0, SIZE - 1)
	ball.y += 1
	if ball.y == SIZE - 1:
		reward += 1.0 if absi(ball.x - paddle) <= 1 else -1.0
		done = true
		reset()


func get_obs() -> Dictionary:
	picture.fill(Color.BLACK)
	picture.set_pixelv(ball, Color.RED)
	for x in range(maxi(paddle - 1, 0), mini(paddle + 2, SIZE)):
		picture.set_pixel(x, SIZE - 1, Color.LIME)
	return {"camera_2d": picture.get_data().hex_encode()}


func get_obs_space() -> Dictionary:
	return {"camera_2d": {"size": [3, SIZE, SIZE], "space": "box"}}


func get_action_space() -> Dictionary:
	return {"move": {"size": 3, "action_type": "discrete"}}


func set_action(action: Dictionary) -> void:
	step = int(action["move"]) - 1
