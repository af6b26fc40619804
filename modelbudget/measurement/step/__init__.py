"""What a step is: forward, loss, backward and the optimizer, of modules of any origin."""
