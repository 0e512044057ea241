#!/usr/bin/env bash
# Compiles the game with the package com.unity.ml-agents 4.0.0 and Mono: build.sh PACKAGE FOLDER
#
# PACKAGE holds Runtime/ and Plugins/, and is only read. FOLDER gets game.exe and Protobuf's library.
set -euo pipefail
package=$(cd "$1" && pwd) folder=$(mkdir -p "$2" && cd "$2" && pwd)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
protobuf=$(find "$package/Plugins" -name Google.Protobuf_Packed.dll | head -1)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$package/Runtime" "$copy"
cp "$protobuf" "$folder"
cd "$copy/Runtime"

# mcs has neither local functions nor ?? with a struct. Analytics are left out.
sed -i -e '/float MultiRange()/,/^            }/ s/^            }/            };/' \
    -e 's/float MultiRange()/Func<float> MultiRange = () =>/' Sampler.cs
sed -i 's/m_Brain?\.\(DecideAction()\) ?? \(.*\);/m_Brain == null ? \2 : m_Brain.\1;/' Agent.cs
sed -i '/#region Analytics/,/#endregion/d' Communicator/GrpcExtensions.cs
rm SideChannels/TrainingAnalyticsSideChannel.cs Grpc/CommunicatorObjects/*Grpc.cs Timer.cs
rm MLAgentsSettings*.cs SensorHelper.cs AssemblyInfo.cs
rm Demonstrations/DemonstrationRecorder.cs Policies/SentisPolicy.cs

mcs -langversion:latest -define:UNITY_STANDALONE -define:DEBUG -warn:0 \
    -r:"$protobuf" -r:System.Core -out:"$folder/game.exe" "$here/Engine.cs" "$here/Game.cs" \
    *.cs {Actuators,Communicator,Demonstrations,Policies,SideChannels,Inference/Utils}/*.cs \
    Grpc/CommunicatorObjects/*.cs Sensors/{BufferSensor,Observation,VectorSensor}*.cs \
    Sensors/{CompressionSpec,IBuiltInSensor,ISensor,SensorComponent,SensorShapeValidator}.cs \
    Sensors/StackingSensor.cs
