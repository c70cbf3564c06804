//! Expansion of `$(NAME)` in values, commands and arguments, like the kubelet's.
//!
//! `$(NAME)` is replaced by the variable's value, or kept if there is no such variable; `$$` is a literal `$`; any other `$`
//! stands for itself. Names may contain anything but `)`. Inserted values are not expanded again, so references cannot be
//! circular.

use std::borrow::Cow;

/// Expands references that `lookup` resolves. Text without `$` is returned unchanged.
pub(crate) fn expand<'a, 'v>(text: &'a str, mut lookup: impl FnMut(&str) -> Option<&'v str>) -> Cow<'a, str> {
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
            // Consume both bytes of `$$` and `$(`, so that the second `$` of a pair starts no reference.
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
