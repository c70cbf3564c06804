//! `$(NAME)` in values, commands and arguments, as a kubelet expands it.
//!
//! The grammar is small: `$(NAME)` is replaced by the variable's value, or stays as it is when there is no such
//! variable; `$$` is a plain `$`; any other `$` stands for itself. Names may hold anything but `)`. What was put in is
//! not looked at again, so references cannot go round in circles.

use std::borrow::Cow;

/// Replaces what `lookup` knows. Text without `$` is handed back as it is.
pub(crate) fn expand<'a, 'v>(text: &'a str, lookup: impl Fn(&str) -> Option<&'v str>) -> Cow<'a, str> {
    let Some(first) = text.find('$') else { return Cow::Borrowed(text) };
    let mut expanded = String::with_capacity(text.len());
    expanded.push_str(&text[..first]);
    let mut rest = &text[first..];
    while let Some(dollar) = rest.find('$') {
        expanded.push_str(&rest[..dollar]);
        rest = &rest[dollar..];
        let after = &rest[1..];
        let reference = after.strip_prefix('(').and_then(|opened| opened.split_once(')'));
        if let Some((name, behind)) = reference {
            match lookup(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.push_str(&rest[..name.len() + 3]),
            }
            rest = behind;
        } else {
            // Both bytes of `$$` and `$(` are used up, so that the second `$` of a pair starts nothing.
            expanded.push('$');
            rest = after;
            if let Some(behind) = after.strip_prefix('$') {
                rest = behind;
            } else if let Some(behind) = after.strip_prefix('(') {
                expanded.push('(');
                rest = behind;
            }
        }
    }
    expanded.push_str(rest);
    Cow::Owned(expanded)
}

#[cfg(test)]
mod tests;
