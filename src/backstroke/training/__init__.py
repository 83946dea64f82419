"""Training ONNX models: losses, optimizers, schedules, the `Trainer`, and the commands that use them."""
