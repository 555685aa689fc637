# docker build -t embodied_env . && docker run --rm embodied_env embodied-env demo
ARG ROS_DISTRO=jazzy
FROM ros:${ROS_DISTRO}-ros-base

# The version of ROS packages is that of the image's distribution.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        libegl-mesa0 libegl1 libgl1-mesa-dri libopengl0 python3-venv "ros-${ROS_DISTRO}-launch-ros" \
    && rm -rf /var/lib/apt/lists/*

# With the packages of the system, for rclpy; and the NumPy that its messages are built with.
COPY . /opt/embodied_env
RUN python3 -m venv --system-site-packages /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir "numpy==1.26.*" "/opt/embodied_env[sim,images,record,onnx,report,remote]"

# The image's entry point sources ROS 2, which adds its folders to these.
ENV PATH=/opt/venv/bin:$PATH AMENT_PREFIX_PATH=/opt/venv
WORKDIR /data
CMD ["embodied-env", "doctor", "--install"]
