"""The worked example of docs/examples: two parts, one optimizer, gradients everywhere."""

import torch

from docs.examples import encoder_decoder as example


def words(count=9, *, unseen=False, seed=0):
    return example.draw_words(count, unseen=unseen, generator=torch.Generator().manual_seed(seed))


def test_words_are_reversed_and_the_test_words_never_trained_on():
    for unseen in (False, True):
        letters, backwards, lengths = words(50, unseen=unseen)
        assert letters.shape == backwards.shape == (50, example.LONGEST + 1)
        for word, back, length in zip(letters.tolist(), backwards.tolist(), lengths.tolist(), strict=True):
            assert word[: length - 1] == back[: length - 1][::-1]
            assert set(word[length - 1 :]) == set(back[length - 1 :]) == {example.STOP}
            assert (sum(word[: length - 1]) % 10 == 0) == unseen


def test_what_pads_a_word_does_not_matter():
    torch.manual_seed(0)
    encoder, decoder = example.Encoder(), example.Decoder()
    letters, backwards, lengths = words()
    other = letters.masked_fill(torch.arange(letters.shape[1]) >= lengths[:, None], 3)
    assert (other != letters).any()
    loss = example.loss_of(encoder, decoder, letters, backwards, lengths)
    torch.testing.assert_close(example.loss_of(encoder, decoder, other, backwards, lengths), loss)
    written = example.reverse(encoder, decoder, letters, lengths)
    assert written.equal(example.reverse(encoder, decoder, other, lengths))
