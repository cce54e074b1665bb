//! Mutants of Rust sources, all in one build.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Expr, Stmt, UnOp, parse_quote};

use crate::{Result, add_switch, read, write};

struct Mutant {
    line: usize,
    what: String,
}

/// Rewrites one file. Numbers go on over all files.
struct Planter<'a> {
    crate_name: &'static str,
    mutants: &'a mut Vec<Mutant>,
    left_out: &'a HashSet<u32>,
}

impl Planter<'_> {
    /// Counts a mutant. `None` where it does not compile.
    fn number(&mut self, line: usize, what: String) -> Option<u32> {
        self.mutants.push(Mutant { line, what });
        let n = u32::try_from(self.mutants.len()).ok()?;
        (!self.left_out.contains(&n)).then_some(n)
    }

    fn switch(&self) -> syn::Path {
        syn::parse_str(&format!("{}::mutant", self.crate_name)).expect("a path")
    }

    /// `on(n) ^ e`
    fn contrary(&mut self, e: &mut Expr, line: usize, text: &str) {
        if let Some(n) = self.number(line, format!("the contrary of {text}")) {
            let switch = self.switch();
            *e = parse_quote!((#switch::on(#n) ^ (#e)));
        }
    }

    fn comparison(&mut self, e: &mut Expr, line: usize, text: &str) {
        let Expr::Binary(b) = e else { return };
        let (name, swapped, changed) = match b.op {
            BinOp::Lt(_) => ("lt", false, "<="),
            BinOp::Le(_) => ("le", false, "<"),
            BinOp::Gt(_) => ("lt", true, ">="),
            BinOp::Ge(_) => ("le", true, ">"),
            _ => return,
        };
        let what = format!("{text} -> {changed}");
        if let (Some(n), Expr::Binary(b)) = (self.number(line, what), &*e) {
            let (left, right, switch) = (&b.left, &b.right, self.switch());
            let name = quote::format_ident!("{name}");
            *e = match swapped {
                false => parse_quote!(#switch::#name(#n, &(#left), &(#right))),
                true => parse_quote!(#switch::#name(#n, &(#right), &(#left))),
            };
        }
    }

    /// `a && b` without `a`, and without `b`.
    fn either_alone(&mut self, e: &mut Expr, line: usize, text: &str) {
        let switch = self.switch();
        let Expr::Binary(b) = e else { return };
        let is_and = matches!(b.op, BinOp::And(_));
        for (side, name) in [(&mut b.left, "left"), (&mut b.right, "right")] {
            if has_let(side) {
                continue;
            }
            if let Some(n) = self.number(line, format!("{text} without its {name} side")) {
                **side = match is_and {
                    true => parse_quote!((#side || #switch::on(#n))),
                    false => parse_quote!((#side && !#switch::on(#n))),
                };
            }
        }
    }
}

/// Whether that operand is a `let`, or a chain with one.
fn has_let(e: &Expr) -> bool {
    match e {
        Expr::Let(_) => true,
        Expr::Binary(b) if matches!(b.op, BinOp::And(_)) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

fn shown(e: &impl quote::ToTokens) -> String {
    let text = e.to_token_stream().to_string();
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(120)
        .collect()
}

/// Where it begins. To be asked before anything in it is changed.
fn line_of(code: &impl Spanned) -> usize {
    code.span().start().line
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| shown(a).contains("test"))
}

impl VisitMut for Planter<'_> {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        // What it was before anything in it was changed.
        let (text, line) = (shown(e), line_of(e));
        let condition = match e {
            Expr::If(i) => shown(&i.cond),
            _ => String::new(),
        };
        match e {
            Expr::Repeat(r) => return self.visit_expr_mut(&mut r.expr),
            Expr::Const(_) => return,
            _ => visit_mut::visit_expr_mut(self, e),
        }
        match e {
            Expr::Binary(b) => match b.op {
                BinOp::Eq(_) | BinOp::Ne(_) => self.contrary(e, line, &text),
                BinOp::And(_) | BinOp::Or(_) => self.either_alone(e, line, &text),
                _ => self.comparison(e, line, &text),
            },
            Expr::Unary(u) if matches!(u.op, UnOp::Not(_)) => self.contrary(e, line, &text),
            Expr::If(i) => {
                let plain = matches!(
                    *i.cond,
                    Expr::MethodCall(_) | Expr::Call(_) | Expr::Path(_) | Expr::Field(_)
                );
                if plain {
                    self.contrary(&mut i.cond, line, &condition);
                }
            }
            Expr::Lit(l) => {
                if let syn::Lit::Int(_) = l.lit
                    && let Some(n) = self.number(line, format!("{text} -> one more"))
                {
                    let switch = self.switch();
                    *e = parse_quote!(#switch::number(#n, #l));
                }
            }
            _ => {}
        }
    }

    fn visit_stmt_mut(&mut self, s: &mut Stmt) {
        let (text, line) = (shown(s), line_of(s));
        visit_mut::visit_stmt_mut(self, s);
        let Stmt::Expr(e, Some(_)) = s else { return };
        let call = matches!(
            e,
            Expr::MethodCall(_) | Expr::Call(_) | Expr::Assign(_) | Expr::Try(_) | Expr::Await(_)
        );
        let assigns =
            matches!(e, Expr::Binary(b) if matches!(b.op, BinOp::AddAssign(_) | BinOp::SubAssign(_)));
        if (call || assigns)
            && let Some(n) = self.number(line, format!("without {text}"))
        {
            let switch = self.switch();
            *s = parse_quote!(if !#switch::on(#n) { #e; });
        }
    }

    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}
    fn visit_item_static_mut(&mut self, _: &mut syn::ItemStatic) {}
    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}
    fn visit_trait_item_const_mut(&mut self, _: &mut syn::TraitItemConst) {}
    fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_attribute_mut(&mut self, _: &mut syn::Attribute) {}
    fn visit_generic_argument_mut(&mut self, _: &mut syn::GenericArgument) {}
    fn visit_variant_mut(&mut self, _: &mut syn::Variant) {}

    fn visit_item_fn_mut(&mut self, f: &mut syn::ItemFn) {
        if f.sig.constness.is_none() && !is_test(&f.attrs) {
            visit_mut::visit_item_fn_mut(self, f);
        }
    }

    fn visit_impl_item_fn_mut(&mut self, f: &mut syn::ImplItemFn) {
        if f.sig.constness.is_none() && !is_test(&f.attrs) {
            visit_mut::visit_impl_item_fn_mut(self, f);
        }
    }

    fn visit_item_impl_mut(&mut self, i: &mut syn::ItemImpl) {
        // What is shown to people is no logic.
        let shows = i.trait_.as_ref().is_some_and(|(_, path, _)| {
            path.segments
                .last()
                .is_some_and(|s| s.ident == "Debug" || s.ident == "Display")
        });
        if !shows && !is_test(&i.attrs) {
            visit_mut::visit_item_impl_mut(self, i);
        }
    }

    fn visit_item_mod_mut(&mut self, m: &mut syn::ItemMod) {
        if !is_test(&m.attrs) {
            visit_mut::visit_item_mod_mut(self, m);
        }
    }
}

/// Writes the mutants into the copy, and builds it until all that are left compile.
pub(crate) fn plant(copy: &Path, list: &Path, files: &[String]) -> Result<()> {
    let mut left_out = HashSet::new();
    add_switch(copy)?;
    let sources: Vec<String> = files
        .iter()
        .map(|file| read(&copy.join(file)))
        .collect::<Result<_>>()?;
    loop {
        let (mut mutants, mut table) = (Vec::new(), String::new());
        for (file, source) in files.iter().zip(&sources) {
            let mut tree = syn::parse_file(source).map_err(|e| format!("{file}: {e}"))?;
            let crate_name = if file.starts_with("dlock-core/") {
                "crate"
            } else {
                "dlock_core"
            };
            let before = mutants.len();
            Planter {
                crate_name,
                mutants: &mut mutants,
                left_out: &left_out,
            }
            .visit_file_mut(&mut tree);
            for (i, m) in mutants.iter().enumerate().skip(before) {
                let n = u32::try_from(i + 1).unwrap_or(u32::MAX);
                if !left_out.contains(&n) {
                    let _ = writeln!(table, "{n}\t{file}:{}\t{}", m.line, m.what);
                }
            }
            write(&copy.join(file), &prettyplease::unparse(&tree))?;
        }
        write(list, &table)?;
        let bad = do_not_compile(copy, files)?;
        println!(
            "{} mutants, {} do not compile",
            mutants.len(),
            left_out.len() + bad.len()
        );
        if bad.is_empty() {
            return Ok(());
        }
        left_out.extend(bad);
    }
}

/// The numbers of those mutants in whose lines the compiler finds an error.
fn do_not_compile(copy: &Path, files: &[String]) -> Result<HashSet<u32>> {
    let packages: HashSet<&str> = files.iter().filter_map(|file| file.split('/').next()).collect();
    let output = Command::new("cargo")
        .args(["check", "--quiet", "--lib", "--all-features"])
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .args(["--message-format", "json"])
        .current_dir(copy)
        .stderr(Stdio::null())
        .output()
        .map_err(|e| format!("cargo check: {e}"))?;
    let (mut bad, mut errors) = (HashSet::new(), String::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(said) = serde_json::from_str::<serde_json::Value>(line) else {
            continue;
        };
        let message = &said["message"];
        if message["level"] != "error" {
            continue;
        }
        let _ = writeln!(errors, "{}", message["rendered"].as_str().unwrap_or_default());
        let notes = message["children"].as_array().into_iter().flatten();
        let spans: Vec<_> = [message]
            .into_iter()
            .chain(notes)
            .filter_map(|m| m["spans"].as_array())
            .flatten()
            .collect();
        let texts = spans.iter().filter_map(|span| span["text"].as_array()).flatten();
        let before = bad.len();
        bad.extend(texts.flat_map(|text| numbers(text["text"].as_str().unwrap_or_default())));
        if bad.len() == before {
            // A statement that is left out in between moves something.
            let at = |key| spans.iter().filter_map(move |span| span[key].as_u64());
            let (first, last) = (
                at("line_start").min().unwrap_or(0),
                at("line_end").max().unwrap_or(0),
            );
            let file = spans
                .first()
                .and_then(|span| span["file_name"].as_str())
                .unwrap_or_default();
            let lines = read(&copy.join(file)).unwrap_or_default();
            let between = lines
                .lines()
                .skip(first.saturating_sub(1) as usize)
                .take((last - first) as usize + 1);
            bad.extend(
                between
                    .filter(|line| line.trim_start().starts_with("if !"))
                    .flat_map(numbers),
            );
        }
    }
    match output.status.success() || !bad.is_empty() {
        true => Ok(bad),
        false => Err(format!(
            "the copy does not compile, and no mutant is to blame:\n{errors}"
        )),
    }
}

/// The numbers in `mutant::on(7)`, `mutant::lt(8, ..)` and so on.
fn numbers(line: &str) -> impl Iterator<Item = u32> {
    line.split("mutant::").skip(1).filter_map(|rest| {
        let digits = rest
            .split(|c: char| !c.is_ascii_alphabetic() && c != '(')
            .next()
            .map_or(0, str::len);
        let digits = rest[digits..].split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    })
}
