"""Where a run's configuration, metrics, videos and final evaluation go besides its own files: TensorBoard, Weights &
Biases, MLflow. Each logger has a thread and a bounded queue, so that none can stop or slow training.
"""
