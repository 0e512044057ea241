# Trains and renders in a container, with the locked versions.
#
#   docker build -t purejaxppo .
#   docker run --rm --init -it -v "$PWD/runs:/app/runs" purejaxppo train --config hopper.yaml --video
#
# With an NVIDIA GPU and its container toolkit:
#
#   docker build -t purejaxppo --build-arg EXTRAS=brax,gymnax,render,cuda .
#   docker run --rm --init -it --gpus all -v "$PWD/runs:/app/runs" purejaxppo train --config hopper.yaml

FROM python:3.13-slim
ARG EXTRAS=brax,gymnax,render

# OSMesa renders videos without a GPU and a display.
RUN apt-get update \
    && apt-get install -y --no-install-recommends libosmesa6 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/purejaxppo
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY purejaxppo purejaxppo
COPY configs configs
RUN pip install --no-cache-dir --constraint requirements.lock ".[$EXTRAS]"

# Any user may write here, so `docker run --user "$(id -u):$(id -g)"` works, too.
WORKDIR /app
RUN chmod 777 /app
ENV HOME=/app
ENTRYPOINT ["purejaxppo"]
