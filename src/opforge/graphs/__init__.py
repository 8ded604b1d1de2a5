"""Compiled graphs of torch.compile that travel: `opforge.compiled`. Nothing here is imported by `import opforge`."""
