"""Parameters that replace others in an optimizer train as they would without gpq, and gpq reports them."""

import torch

from .test_stepping import Examples, job

Linear = torch.nn.Linear


def network() -> torch.nn.ModuleList:
    torch.manual_seed(5)
    return torch.nn.ModuleList([Linear(5, 8), Linear(8, 1), Linear(8, 1)])


def replace(optimizer: torch.optim.Optimizer, layers: torch.nn.ModuleList) -> None:
    """Replace the first head by the second."""
    group = optimizer.param_groups[0]["params"]
    group[2:4] = list(layers[2].parameters())


def test_a_replacement_head_is_accumulated_too() -> None:
    data, this = Examples(60), job()
    loader = this.loader(data, batch_size=12, max_local_batch=4, shuffle=False)
    layers, alone = network(), network()
    optimizer = torch.optim.SGD([*layers[0].parameters(), *layers[1].parameters()], lr=0.1)
    plain = torch.optim.SGD([*alone[0].parameters(), *alone[1].parameters()], lr=0.1)
    this.prepare(layers, optimizer)
    for epoch in this.epochs(2):
        if epoch == 1:
            replace(optimizer, layers)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(layers[1 + epoch](layers[0](x).tanh()), y).backward()
            optimizer.step()
    for epoch in range(2):
        if epoch == 1:
            replace(plain, alone)
        for at in range(0, 60, 12):
            plain.zero_grad()
            x, y = data.x[at : at + 12], data.y[at : at + 12]
            torch.nn.functional.mse_loss(alone[1 + epoch](alone[0](x).tanh()), y).backward()
            plain.step()
    for mine, other in zip(layers.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, other)
    assert "late-group" in this._engine.shape.freedoms._agreed
