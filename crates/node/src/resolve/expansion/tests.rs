use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn expanded(text: &str) -> String {
    let variables =
        [("VAR_A", "A"), ("VAR_B", "B"), ("VAR_C", "C"), ("VAR_REF", "$(VAR_A)"), ("VAR_EMPTY", "")];
    let variables = HashMap::from(variables);
    expand(text, |name| variables.get(name).copied()).into_owned()
}

/// The cases of the kubelet's own table, and some more.
#[test]
fn references_are_expanded_like_in_a_kubelet() {
    let table = [
        // Positions of a reference.
        ("$(VAR_A)", "A"),
        ("$(VAR_A)-$(VAR_A)", "A-A"),
        ("$(VAR_A)-1", "A-1"),
        ("___$(VAR_B)___", "___B___"),
        ("___$(VAR_C)", "___C"),
        ("$(VAR_A)_$(VAR_B)_$(VAR_C)", "A_B_C"),
        ("$(VAR_A)$(VAR_B)", "AB"),
        ("foo$(VAR_EMPTY)bar", "foobar"),
        // `$$` is a literal `$` and starts no reference.
        ("$$(VAR_B)_$(VAR_A)", "$(VAR_B)_A"),
        ("$$(VAR_A)_$$(VAR_B)", "$(VAR_A)_$(VAR_B)"),
        ("f000-$$VAR_A", "f000-$VAR_A"),
        ("$$$$$$(BIG_MONEY)", "$$$(BIG_MONEY)"),
        ("$$$$$$(VAR_A)", "$$$(VAR_A)"),
        ("$$$$$$$(GOOD_ODDS)", "$$$$(GOOD_ODDS)"),
        ("$$$$$$$(VAR_A)", "$$$A"),
        ("$$", "$"),
        ("$$$", "$$"),
        // A backslash has no special meaning.
        (r"foo\$(VAR_C)bar", r"foo\Cbar"),
        (r"foo\\$(VAR_C)bar", r"foo\\Cbar"),
        (r"foo\\\\$(VAR_A)bar", r"foo\\\\Abar"),
        (r"foo-\$(VAR_A", r"foo-\$(VAR_A"),
        // No nesting and no second expansion.
        ("$(VAR_A$(VAR_B))", "$(VAR_A$(VAR_B))"),
        ("$(VAR_A$(VAR_B)", "$(VAR_A$(VAR_B)"),
        ("$(VAR_REF)", "$(VAR_A)"),
        ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
        // Not references.
        ("foo$(VAR_Awhoops!", "foo$(VAR_Awhoops!"),
        ("f00__(VAR_A)__", "f00__(VAR_A)__"),
        ("$?_boo_$!", "$?_boo_$!"),
        ("$VAR_A", "$VAR_A"),
        ("$VAR_A)", "$VAR_A)"),
        ("${VAR_A}", "${VAR_A}"),
        ("$(VAR_DNE)", "$(VAR_DNE)"),
        ("$()", "$()"),
        ("$(VAR_B)_______$(A", "B_______$(A"),
        ("$(VAR_C)_______$(", "C_______$("),
        ("$(VAR_A)foobarzab$", "Afoobarzab$"),
        ("--$($($($($--", "--$($($($($--"),
        ("$($($($($--foo$(", "$($($($($--foo$("),
        ("foo0--$($($($(", "foo0--$($($($("),
        ("$(foo$$var)", "$(foo$$var)"),
        ("\n", "\n"),
        ("", ""),
        ("$ä$(VAR_A)ö$", "$äAö$"),
    ];
    for (text, wanted) in table {
        assert_eq!(expanded(text), wanted, "{text:?}");
    }
}

/// An alternative form of the grammar: a string is a sequence of pieces with one meaning each.
#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Pair,
    Reference(String),
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        "[a-zA-Z0-9 (){}/ä-]{1,8}".prop_map(Piece::Text),
        Just(Piece::Pair),
        "[A-C$ (.-]{0,3}".prop_map(Piece::Reference),
    ]
}

proptest! {
    #[test]
    fn text_without_a_dollar_stays_as_it_is(text in "[^$]{0,40}") {
        prop_assert_eq!(expand(&text, |_| Some("x")), text.as_str());
    }

    #[test]
    fn unknown_references_stay_verbatim_except_for_double_dollars(text in "[$()A ]{0,30}") {
        // With no variable at all, only `$$` changes; take the pairs out and nothing does.
        let single = text.replace("$$", "$ ");
        let single = single.replace("$$", "$ ");
        prop_assert_eq!(expand(&single, |_| None), single.as_str());
    }

    #[test]
    fn each_piece_is_expanded_once_and_values_are_not_expanded_again(
        pieces in prop::collection::vec(piece(), 0..12),
        variables in prop::collection::hash_map("[A-C]{1,2}", "[$(ABC) ]{0,9}", 0..6),
    ) {
        let (mut text, mut wanted) = (String::new(), String::new());
        for piece in &pieces {
            match piece {
                Piece::Text(plain) => {
                    text.push_str(plain);
                    wanted.push_str(plain);
                }
                Piece::Pair => {
                    text.push_str("$$");
                    wanted.push('$');
                }
                Piece::Reference(name) => {
                    let written = format!("$({name})");
                    wanted.push_str(variables.get(name).unwrap_or(&written));
                    text.push_str(&written);
                }
            }
        }
        let found = expand(&text, |name| variables.get(name).map(String::as_str)).into_owned();
        prop_assert_eq!(found, wanted);
    }
}
