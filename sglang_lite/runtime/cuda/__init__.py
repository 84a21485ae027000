"""What only a CUDA device needs: graphs of decode steps, sampling and masks on the device."""
