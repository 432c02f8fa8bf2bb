-- A filter for pandoc: what the page's Markdown has no sign for becomes text. The first two lines of the text are the
-- document's title and the number of pictures that were left out.

local pictures = 0

local function contents(element) return element.content end

-- A table as a paragraph for each row.
local function paragraphs(table)
  local rows = pandoc.List(table.head.rows)
  for _, body in ipairs(table.bodies) do
    rows:extend(body.head)
    rows:extend(body.body)
  end
  rows:extend(table.foot.rows)
  return rows:map(function(row)
    local line = pandoc.List()
    for k, cell in ipairs(row.cells) do
      if k > 1 then line:insert(pandoc.Str(" | ")) end
      line:extend(pandoc.utils.blocks_to_inlines(cell.contents, { pandoc.Space() }))
    end
    return pandoc.Para(line)
  end)
end

local function with_title(doc)
  local front = pandoc.List()
  if doc.meta.from == "docx" then -- there these are paragraphs of the text, with styles of these names
    for _, name in ipairs({ "subtitle", "author", "date", "abstract" }) do
      local value = doc.meta[name]
      if pandoc.utils.type(value) == "List" then
        for _, each in ipairs(value) do front:insert(pandoc.Para(pandoc.utils.stringify(each))) end
      elseif value then
        front:insert(pandoc.Para(pandoc.utils.stringify(value)))
      end
    end
  end
  local title = pandoc.utils.stringify(doc.meta.title or "")
  if doc.meta.from == "epub" then -- pandoc writes the title above text that comes before the first heading
    doc.blocks = doc.blocks:filter(function(block)
      return block.t ~= "Header" or not block.classes:includes("unnumbered") or pandoc.utils.stringify(block) ~= title
    end)
  end
  front:insert(1, pandoc.RawBlock("markdown", title .. "\n" .. pictures))
  front:extend(doc.blocks)
  doc.blocks = front
  return doc
end

return {
  {
    Image = function() pictures = pictures + 1; return {} end,
    Table = paragraphs,
    HorizontalRule = function() return pandoc.RawBlock("markdown", "* * *") end,
    Header = function(header)
      if pandoc.utils.stringify(header) == "" then return {} end
      return header:walk({ LineBreak = function() return pandoc.Space() end })
    end,
    Link = function(link) if link.target:sub(1, 1) == "#" then return link.content end end, -- of a table of contents
    Underline = function(element) return pandoc.Emph(element.content) end, -- the typewriter's italics
    SmallCaps = contents,
    Strikeout = contents,
    Superscript = contents,
    Subscript = contents,
    Span = contents,
    Div = contents,
  },
  { Pandoc = with_title },
}
