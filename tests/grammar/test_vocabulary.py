"""A vocabulary read from a tokenizer.json; test_checkpoint_vocabulary.py tries other kinds."""

from tokenizers import AddedToken, Tokenizer, decoders, models

from enginebay import GrammarCompiler, Text, Vocabulary

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
END = 259


def unigram() -> Tokenizer:
    pieces = [("<unk>", 0.0), *((byte, -9.0) for byte in BYTES), ("a", -1.0), ("▁b", -1.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


def test_of_pieces_with_scores() -> None:
    vocabulary = Vocabulary.from_tokenizer_json(
        unigram().to_str(), vocab_size=270, end_token_ids=[END], special_token_ids=[0, 300]
    )
    assert vocabulary.tokens[1:3] == [b"\x00", b"\x01"]
    assert vocabulary.tokens[257:] == [b"a", b" b", b"</s>", *[b""] * 10]
    assert vocabulary.special_token_ids == {0, END}
    assert vocabulary.end_token_ids == {END}
    assert b"".join(vocabulary.tokens[i] for i in vocabulary.encode("a b")) == b"a b"
    matcher = GrammarCompiler(vocabulary).matcher(Text("a b"))
    assert all(map(matcher.accept, [257, 258]))
    assert matcher.finished


def test_logits_may_be_fewer_than_tokens() -> None:
    vocabulary = Vocabulary.from_tokenizer_json(
        unigram().to_str(), vocab_size=258, end_token_ids=[END]
    )
    assert len(vocabulary.tokens) == 258
    assert not vocabulary.special_token_ids | vocabulary.end_token_ids
