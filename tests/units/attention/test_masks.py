"""The laws of masks: True = may attend, bottom-right aligned, combined by logical and."""

import pytest
import torch

from minigpt.attention.masks import causal_mask, combine_masks, padding_mask


def test_causal_mask_hides_strictly_above_the_diagonal():
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert torch.equal(causal_mask(4), torch.tensor(expected, dtype=torch.bool))


def test_causal_mask_is_bottom_right_aligned_when_there_are_more_keys_than_queries():
    expected = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert torch.equal(causal_mask(3, 5), torch.tensor(expected, dtype=torch.bool))


def test_causal_mask_refuses_fewer_keys_than_queries():
    with pytest.raises(ValueError, match="got 3 keys for 5 queries; wanted at least as many"):
        causal_mask(5, 3)


def test_padding_mask_cuts_the_columns_of_padded_keys_right_and_left():
    lengths = torch.tensor([1, 3])
    right = padding_mask(lengths, 4)
    left = padding_mask(lengths, 4, side="left")
    assert right.shape == left.shape == (2, 1, 1, 4)
    assert right[:, 0, 0].tolist() == [[True, False, False, False], [True, True, True, False]]
    assert left[:, 0, 0].tolist() == [[False, False, False, True], [False, True, True, True]]


def test_padding_mask_refuses_an_unknown_side():
    with pytest.raises(ValueError, match="side='middle'; wanted 'left' or 'right'"):
        padding_mask(torch.tensor([1]), 3, side="middle")


def test_masks_are_combined_by_logical_and():
    causal, padding = causal_mask(3), padding_mask(torch.tensor([2, 3]), 3)
    combined = combine_masks(causal, padding)
    assert combined.shape == (2, 1, 3, 3)
    assert combined[0, 0].tolist() == [[True, False, False], [True, True, False], [True, True, False]]
    assert combined[1, 0].equal(causal)
