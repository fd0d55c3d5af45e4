"""The equations of the papers written out by loops over samples, outputs and groups, in Python floats."""

from __future__ import annotations

import math


def mse_gradients_by_loops(weights, biases, inputs, targets):
    """Per-layer gradients of torch's mse_loss for a ReLU MLP: lists of [out][in] weights and [out] biases."""
    count, outputs = len(inputs), len(biases[-1])
    grad_w = [[[0.0] * len(row) for row in w] for w in weights]
    grad_b = [[0.0] * len(b) for b in biases]
    for x, t in zip(inputs, targets, strict=True):
        before, activations = _forward(weights, biases, x)
        error = [2.0 * (y - goal) / (count * outputs) for y, goal in zip(before[-1], t, strict=True)]
        _backward(weights, before, activations, error, grad_w, grad_b)
    return grad_w, grad_b


def mse_terms_by_loops(weights, biases, inputs, targets, directions, partition, num_groups):
    """Spec 1.2, the client's side: the terms G, sigma_1..m, beta of a *perturbed* MLP, each as (weights, biases).

    G: (e, 0)    sigma_s: (alpha r_a|_s, r_a|_s . e)    beta: (0, alpha)
    """
    count, outputs = len(inputs), len(biases[-1])
    scale = 2.0 / (count * outputs)
    terms = []
    for term in range(num_groups + 2):
        grad_w = [[[0.0] * len(row) for row in w] for w in weights]
        grad_b = [[0.0] * len(b) for b in biases]
        for x, t in zip(inputs, targets, strict=True):
            before, activations = _forward(weights, biases, x)
            error = [y - goal for y, goal in zip(before[-1], t, strict=True)]
            alpha = sum(activations[-1])
            group = term - 1
            if term == 0:
                of_outputs, of_alpha = error, 0.0
            elif term <= num_groups:
                masked = [d if g == group else 0.0 for d, g in zip(directions, partition, strict=True)]
                of_outputs = [alpha * d for d in masked]
                of_alpha = sum(d * e for d, e in zip(masked, error, strict=True))
            else:
                of_outputs, of_alpha = [0.0] * outputs, alpha
            _backward(
                weights, before, activations, [scale * c for c in of_outputs], grad_w, grad_b, of_alpha=scale * of_alpha
            )
        terms.append((grad_w, grad_b))
    return terms


def _forward(weights, biases, x):
    """(values before each activation, inputs of each layer)"""
    before, activations = [], [list(x)]
    for number, (w, b) in enumerate(zip(weights, biases, strict=True)):
        before.append(
            [
                bi + sum(wij * h for wij, h in zip(row, activations[-1], strict=True))
                for row, bi in zip(w, b, strict=True)
            ]
        )
        if number < len(weights) - 1:
            activations.append([max(0.0, v) for v in before[-1]])
    return before, activations


def _backward(weights, before, activations, cotangent, grad_w, grad_b, of_alpha=0.0):
    for layer in range(len(weights) - 1, -1, -1):
        w = weights[layer]
        for i, c in enumerate(cotangent):
            grad_b[layer][i] += c
            for j, h in enumerate(activations[layer]):
                grad_w[layer][i][j] += c * h
        if layer == 0:
            return
        below = [sum(cotangent[i] * w[i][j] for i in range(len(w))) for j in range(len(w[0]))]
        if layer == len(weights) - 1:  # alpha is the sum of the head's inputs
            below = [c + of_alpha for c in below]
        cotangent = [c if v > 0 else 0.0 for c, v in zip(below, before[layer - 1], strict=True)]


def softmax(outputs):
    largest = max(outputs)
    powers = [math.exp(y - largest) for y in outputs]
    return [p / sum(powers) for p in powers]


def exchange_by_loops(noisy_outputs, alpha, noise, client_blinders, sample_blinders, group_blinders):
    """Spec 1.3 for one sample: (query mu[i][j], y', sum exp r*, q, p*, p~)."""
    classes = range(len(noisy_outputs))
    mu = [
        [math.exp(noisy_outputs[j] - noisy_outputs[i]) + client_blinders[i] if j != i else None for j in classes]
        for i in classes
    ]
    denominators, coefficients, corrections, blinded, corrected = [], [], [], [], []
    for i in classes:
        exponents = {j: sample_blinders[i] - (noise[j] - noise[i]) * alpha for j in classes if j != i}
        denominators.append(math.exp(sample_blinders[i]) + sum(mu[i][j] * math.exp(e) for j, e in exponents.items()))
        coefficients.append(sum(math.exp(e) for e in exponents.values()))
        corrections.append((1.0 - math.exp(sample_blinders[i])) / group_blinders[i])
        blinded.append(1.0 / (denominators[i] - client_blinders[i] * coefficients[i]))
        corrected.append(blinded[i] * corrections[i])
    return mu, denominators, coefficients, corrections, blinded, corrected


def perturb_conv_by_loops(weight, bias, scale_out, scale_in, order_out, order_in, groups=1):
    """perturbed[o][i] = s_out/s_in * weight of the channels that stand there; `order`: plain channel at each place."""
    out_channels, per_group = len(weight), len(weight[0])
    result = []
    for o in range(out_channels):
        plain_out = order_out[o]
        group = o // (out_channels // groups)
        row = []
        for i in range(per_group):
            plain_in = order_in[group * per_group + i]
            ratio = scale_out[plain_out] / scale_in[plain_in]
            kernel = weight[plain_out][plain_in % per_group]
            row.append([[ratio * value for value in line] for line in kernel])
        result.append(row)
    return result, [scale_out[order_out[o]] * bias[order_out[o]] for o in range(out_channels)]
